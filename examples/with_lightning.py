"""Lightning, recorded by a callback: gradients are accumulated, and validation is in no step.

torchrun --nproc-per-node 2 examples/with_lightning.py runs/my-lightning
"""

import os
import sys

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from model import Model, batches
from torch.utils.data import DataLoader

from overlaplab.integrations import LightningRecorder


class Trained(lightning.LightningModule):
    """The model, with its optimizer and data."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """The loss of one batch."""
        return self.model(*batch)

    def validation_step(self, batch: list[torch.Tensor]) -> None:
        """The loss of one batch, for the progress bar."""
        self.log("loss", self.model(*batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.parameters())

    def train_dataloader(self) -> DataLoader[tuple[torch.Tensor, torch.Tensor]]:
        """A hundred batches, made before."""
        return DataLoader(list(batches(100)), batch_size=None)

    def val_dataloader(self) -> DataLoader[tuple[torch.Tensor, torch.Tensor]]:
        """Two batches."""
        return DataLoader(list(batches(2)), batch_size=None)


def main(out: str) -> None:
    """Fit until the recording is done."""
    trainer = lightning.Trainer(
        accelerator="auto",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", 1)),
        strategy=DDPStrategy(bucket_cap_mb=0.5),
        callbacks=[LightningRecorder(out, then_stop=True)],
        accumulate_grad_batches=2,
        val_check_interval=6,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Trained())


if __name__ == "__main__":
    main(sys.argv[1])
