"""Positional encoding (paper section 3.5)."""

import math

import torch
from torch import Tensor, nn

KINDS = ("sinusoidal", "concatenated", "learned")


def sinusoidal_encoding(length: int, d_model: int) -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos of the same (section 3.5).

    Returns (length, d_model) in fp32. ValueError for an odd d_model or a negative length.
    """
    check_even(d_model)
    exponent = torch.arange(0, d_model, 2, dtype=torch.float64, device="cpu") / d_model
    positions = torch.arange(length, dtype=torch.float64, device="cpu")
    angles = positions[:, None] / 10000**exponent
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).float()


def concatenated_encoding(length: int, d_model: int) -> Tensor:
    """What tensor2tensor v1.0.3 ran: all sines, then all cosines, exponent i / (d/2 - 1)."""
    check_even(d_model)
    pairs = torch.arange(d_model // 2, dtype=torch.float64, device="cpu")
    positions = torch.arange(length, dtype=torch.float64, device="cpu")
    angles = positions[:, None] / 10000 ** (pairs / max(d_model // 2 - 1, 1))
    return torch.cat([angles.sin(), angles.cos()], dim=-1).float()


def check_even(d_model: int) -> None:
    if d_model < 2 or d_model % 2:
        raise ValueError(f"sines and cosines come in pairs: d_model must be even, not {d_model}")


class PositionalEncoding(nn.Module):
    """Adds a vector for its position to each embedding.

    Sinusoids grow on demand. A learned table cannot: ValueError names both lengths.
    """

    def __init__(self, d_model: int, kind: str = "sinusoidal", max_length: int = 1024):
        super().__init__()
        if kind not in KINDS:
            raise ValueError(f"positions are one of {KINDS}, not {kind!r}")
        self.d_model, self.kind = d_model, kind
        if kind == "learned":
            self.table = nn.Parameter(torch.empty(max_length, d_model))
            nn.init.normal_(self.table, std=d_model**-0.5)
        else:
            # Not a buffer: a half-precision model would round it, and rounding is cast last.
            self.table = self.compute(max_length)

    def compute(self, length: int) -> Tensor:
        make = sinusoidal_encoding if self.kind == "sinusoidal" else concatenated_encoding
        return make(length, self.d_model)

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        """(B, T, D) at positions start .. start + T - 1 -> (B, T, D)."""
        end = start + x.size(1)
        if end > self.table.size(0):
            if self.kind == "learned":
                limit = self.table.size(0)
                raise ValueError(f"{end} positions asked for, {limit} learned: no vector beyond")
            self.table = self.compute(max(end, 2 * self.table.size(0)))
        if self.table.device != x.device:
            self.table = self.table.to(x.device)
        return x + self.table[start:end].to(x.dtype)
