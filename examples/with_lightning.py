"""Lightning, recorded by a callback.

torchrun --nproc-per-node 2 examples/with_lightning.py runs/my-lightning
"""

import os
import sys
from typing import Any

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from model import Model, batches
from torch.utils.data import DataLoader

from overlaplab import Recorder


class Record(lightning.Callback):
    """Records the first steps of a fit, and ends it with them."""

    def __init__(self, out: str) -> None:
        self.out = out

    def on_train_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """The strategy's model is what DDP wraps; the module is inside it."""
        self.recorder = Recorder(self.out, trainer.strategy.model).start()

    def on_train_batch_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        """With `accumulate_grad_batches`, only where `trainer.global_step` has grown."""
        self.recorder.step()
        trainer.should_stop = self.recorder.done

    def on_train_end(self, *_: Any) -> None:
        """Also where the fit was shorter than the recording."""
        self.recorder.close()


class Trained(lightning.LightningModule):
    """The model, with its optimizer and data."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """The loss of one batch."""
        return self.model(*batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.parameters())

    def train_dataloader(self) -> DataLoader[tuple[torch.Tensor, torch.Tensor]]:
        """A hundred batches, made before."""
        return DataLoader(list(batches(100)), batch_size=None)


def main(out: str) -> None:
    """Fit until the recording is done."""
    trainer = lightning.Trainer(
        accelerator="auto",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", 1)),
        strategy=DDPStrategy(bucket_cap_mb=0.5),
        callbacks=[Record(out)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Trained())


if __name__ == "__main__":
    main(sys.argv[1])
