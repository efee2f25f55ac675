"""Who may attend to what: padding and causal masks (paper section 3.2.3)."""

import torch
from torch import Tensor


def padding_mask(tokens: Tensor, pad_id: int) -> Tensor:
    """(B, S) token ids -> (B, 1, 1, S), True where the key is not padding."""
    return (tokens != pad_id)[:, None, None, :]


def causal_mask(length: int, past: int = 0, device: torch.device | None = None) -> Tensor:
    """(length, past + length), True where the key is not later than the query.

    The queries are positions past .. past + length - 1; `past` counts positions already cached.
    """
    ones = torch.ones(length, past + length, dtype=torch.bool, device=device)
    return ones.tril(diagonal=past)
