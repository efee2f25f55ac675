# Written from chapters/3-2-3-masks.ipynb by chapters/_book/export.py. Edit the chapter.
"""Who may attend to what: padding and causal masks (paper section 3.2.3)."""

__all__ = [
    "causal_mask",
    "padding_mask",
]

import torch
from torch import Tensor


def padding_mask(tokens: Tensor, pad_id: int) -> Tensor:
    """(B, S) token ids -> (B, 1, 1, S), True where the key is not padding.

    The same for every head and every query: padding is hidden as a key only.
    """
    return (tokens != pad_id)[:, None, None, :]


def causal_mask(length: int, past: int = 0, device: torch.device | None = None) -> Tensor:
    """(length, past + length), True where the key is not later than the query (section 3.2.3).

    The queries stand at positions past .. past + length - 1: `past` counts the positions
    that a cache already holds. ValueError for a negative number.
    """
    if length < 0 or past < 0:
        raise ValueError(f"length and past must not be negative, not {length} and {past}")
    ones = torch.ones(length, past + length, dtype=torch.bool, device=device)
    return ones.tril(diagonal=past)
