"""transformers' Trainer, recorded by a callback: gradients are accumulated, and evaluation is in no step.

torchrun --nproc-per-node 2 examples/with_transformers.py runs/my-trainer
"""

import sys
from tempfile import TemporaryDirectory

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from overlaplab.integrations import TransformersRecorder

CONFIG = LlamaConfig(vocab_size=500, hidden_size=128, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4)


class Tokens(Dataset[dict[str, torch.Tensor]]):
    """Random tokens."""

    def __init__(self, count: int) -> None:
        """So many rows."""
        self.rows = torch.randint(CONFIG.vocab_size, (count, 32))

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self.rows)

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        """A row, for the prediction of the next token."""
        return {"input_ids": self.rows[place], "labels": self.rows[place]}


def main(out: str) -> None:
    """Train for ten steps of two microbatches."""
    with TemporaryDirectory() as folder:
        args = TrainingArguments(
            output_dir=folder,
            max_steps=10,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            eval_strategy="steps",
            eval_steps=3,
            ddp_bucket_cap_mb=1,
            use_cpu=not torch.cuda.is_available(),
            report_to="none",
            disable_tqdm=True,
        )
        recorder = TransformersRecorder(out)
        model = LlamaForCausalLM(CONFIG)
        Trainer(model, args, train_dataset=Tokens(200), eval_dataset=Tokens(16), callbacks=[recorder]).train()


if __name__ == "__main__":
    main(sys.argv[1])
