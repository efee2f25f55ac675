# Written from chapters/3-4-embeddings.ipynb by chapters/_book/export.py. Edit the chapter.
"""Embeddings, and the softmax layer that shares their matrix (paper section 3.4)."""

__all__ = [
    "Embeddings",
]

import math

import torch.nn.functional as F
from torch import Tensor, nn


class Embeddings(nn.Module):
    """One (V, D) matrix: ids become vectors, and vectors become logits (section 3.4).

    Its entries start normal, with standard deviation d_model^-0.5 as in tensor2tensor
    v1.0.3. ValueError when vocab_size or d_model is below 1.
    """

    def __init__(self, vocab_size: int, d_model: int):
        super().__init__()
        if vocab_size < 1 or d_model < 1:
            raise ValueError(
                f"vocab_size and d_model must be at least 1, not {vocab_size} and {d_model}"
            )
        self.table = nn.Embedding(vocab_size, d_model)
        nn.init.normal_(self.table.weight, std=d_model**-0.5)
        self.scale = math.sqrt(d_model)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T) ids -> (B, T, D), multiplied by sqrt(d_model)."""
        return self.table(tokens) * self.scale

    def logits(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, V), with the same matrix, no scale and no bias."""
        return F.linear(x, self.table.weight)
