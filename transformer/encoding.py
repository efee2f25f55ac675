# Written from chapters/3-5-encoding.ipynb by chapters/_book/export.py. Edit the chapter.
"""Positional encoding (paper section 3.5)."""

__all__ = [
    "KINDS",
    "PositionalEncoding",
    "angles",
    "check_size",
    "concatenated_encoding",
    "sinusoidal_encoding",
]

import torch
from torch import Tensor, nn


def check_size(length: int, d_model: int) -> None:
    if length < 0:
        raise ValueError(f"a length cannot be negative, as {length} is")
    if d_model < 2 or d_model % 2:
        raise ValueError(f"sines and cosines pair up: d_model must be even, not {d_model}")


def angles(length: int, exponents: Tensor) -> Tensor:
    """pos / 10000^exponent, one row a position, one column an exponent, in float64."""
    positions = torch.arange(length, dtype=torch.float64, device="cpu")
    return positions[:, None] / 10000**exponents


def sinusoidal_encoding(length: int, d_model: int) -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos of the same.

    Section 3.5. Returns (length, d_model) in fp32. ValueError for an odd d_model or a
    negative length.
    """
    check_size(length, d_model)
    exponents = torch.arange(0, d_model, 2, dtype=torch.float64, device="cpu") / d_model
    x = angles(length, exponents)
    return torch.stack([x.sin(), x.cos()], dim=-1).flatten(1).float()


def concatenated_encoding(length: int, d_model: int) -> Tensor:
    """What tensor2tensor v1.0.3 ran: all sines, then all cosines, exponent i / (d/2 - 1).

    Shapes and errors as in `sinusoidal_encoding`; section 3.5 prints another formula.
    """
    check_size(length, d_model)
    exponents = torch.linspace(0, 1, d_model // 2, dtype=torch.float64, device="cpu")
    x = angles(length, exponents)
    return torch.cat([x.sin(), x.cos()], dim=-1).float()


KINDS = ("sinusoidal", "concatenated", "learned")


class PositionalEncoding(nn.Module):
    """Adds to each vector the encoding of its position (section 3.5).

    `kind` is one of KINDS. Sinusoids grow on demand. A learned table has max_length rows
    and no more: ValueError names both lengths. ValueError for an unknown kind, an odd
    d_model under sinusoids, or a max_length below 1.
    """

    def __init__(self, d_model: int, kind: str = "sinusoidal", max_length: int = 1024):
        super().__init__()
        if kind not in KINDS:
            raise ValueError(f"positions are one of {KINDS}, not {kind!r}")
        if max_length < 1:
            raise ValueError(f"max_length must be at least 1, not {max_length}")
        self.d_model, self.kind = d_model, kind
        if kind == "learned":
            self.table = nn.Parameter(torch.empty(max_length, d_model))
            nn.init.normal_(self.table, std=d_model**-0.5)
        else:
            # Not a buffer: `model.bfloat16()` would round it, and a checkpoint would store it.
            self.table = self.compute(max_length)

    def compute(self, length: int) -> Tensor:
        """The first `length` sinusoids, (length, D) in fp32."""
        make = sinusoidal_encoding if self.kind == "sinusoidal" else concatenated_encoding
        return make(length, self.d_model)

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        """(B, T, D) at positions start .. start + T - 1 -> (B, T, D), in x's dtype."""
        end, limit = start + x.size(1), self.table.size(0)
        if start < 0:
            raise ValueError(f"positions start at 0, not at {start}")
        if end > limit:
            if self.kind == "learned":
                raise ValueError(f"{end} positions asked for, {limit} learned: no vector beyond")
            self.table = self.compute(max(end, 2 * limit))
        if self.table.device != x.device:
            if self.table.is_meta:  # a model given memory after it was built without
                self.table = self.compute(len(self.table))
            self.table = self.table.to(x.device)
        return (x + self.table[start:end]).to(x.dtype)
