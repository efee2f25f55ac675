"""Embeddings, and the softmax layer that shares their matrix (paper section 3.4)."""

import math

import torch.nn.functional as F
from torch import Tensor, nn


class Embeddings(nn.Module):
    """One (V, D) matrix: token ids become vectors, and vectors become logits."""

    def __init__(self, vocab_size: int, d_model: int):
        super().__init__()
        self.table = nn.Embedding(vocab_size, d_model)
        self.scale = math.sqrt(d_model)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T) ids -> (B, T, D), multiplied by sqrt(d_model)."""
        return self.table(tokens) * self.scale

    def logits(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, V), with the same matrix, no scale and no bias."""
        return F.linear(x, self.table.weight)
