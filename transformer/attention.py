# Written from chapters/3-2-attention.ipynb by chapters/_book/export.py. Edit the chapter.
"""Scaled dot-product and multi-head attention (paper section 3.2)."""

__all__ = [
    "KeyValueCache",
    "MultiHeadAttention",
    "draw_attention",
    "fused_attention",
    "head_sizes",
    "open_dead_rows",
    "scaled_dot_product_attention",
]

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V, in the open (section 3.2.1).

    query (..., T, d_k), key (..., S, d_k), value (..., S, d_v); mask boolean, True = may
    attend, broadcastable to (..., T, S). Returns the output (..., T, d_v) and the weights
    (..., T, S). A query that may attend to nothing gets zeros in both. ValueError for a
    mask of another type.
    """
    # Scaled before the product: in half precision the product itself could overflow.
    scores = query / math.sqrt(query.size(-1)) @ key.transpose(-2, -1)
    if mask is None:
        weights = scores.softmax(dim=-1)
    else:
        mask, dead = open_dead_rows(mask)
        weights = scores.masked_fill(~mask, -math.inf).softmax(dim=-1)
        weights = weights.masked_fill(dead, 0.0)
    return weights @ value, weights


def open_dead_rows(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Let a query that may attend to nothing see every key, and say which these are.

    Returns the opened mask and `dead` (..., T, 1), whose outputs the caller sets to zero: no
    NaN is made, in value or gradient, on any backend. ValueError for a mask that is not
    boolean.
    """
    if mask.dtype != torch.bool:
        raise ValueError(f"a mask is boolean, True = may attend; this one is {mask.dtype}")
    mask = torch.atleast_2d(mask)
    dead = ~mask.any(dim=-1, keepdim=True)
    return mask | dead, dead


def fused_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, dropout: float = 0.0
) -> Tensor:
    """The output of `scaled_dot_product_attention` from torch's fused kernel.

    The weights are never stored. `dropout` is the chance that a weight is dropped.
    """
    if mask is None:
        return F.scaled_dot_product_attention(query, key, value, dropout_p=dropout)
    mask, dead = open_dead_rows(mask)
    output = F.scaled_dot_product_attention(query, key, value, mask, dropout_p=dropout)
    return output.masked_fill(dead, 0.0)


def head_sizes(
    d_model: int, heads: int, d_k: int | None = None, d_v: int | None = None
) -> tuple[int, int]:
    """d_k and d_v, by default d_model / heads (section 3.2.2).

    ValueError when the default is asked for and heads do not divide d_model, or when a size
    is below 1.
    """
    if heads < 1:
        raise ValueError(f"heads must be at least 1, not {heads}")
    if None in (d_k, d_v) and d_model % heads:
        raise ValueError(f"heads {heads} do not divide d_model {d_model}")
    d_k = d_model // heads if d_k is None else d_k
    d_v = d_model // heads if d_v is None else d_v
    if min(d_k, d_v) < 1:
        raise ValueError(f"d_k and d_v must be at least 1, not {d_k} and {d_v}")
    return d_k, d_v


class KeyValueCache:
    """Keys and values one attention has already projected, (B, H, length, d)."""

    def __init__(self):
        self.key: Tensor | None = None
        self.value: Tensor | None = None

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Add the newest positions and return all of them."""
        if self.key is not None:
            key = torch.cat([self.key, key], dim=2)
            value = torch.cat([self.value, value], dim=2)
        self.key, self.value = key, value
        return key, value

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order."""
        if self.key is not None:
            self.key, self.value = self.key[rows], self.value[rows]


class MultiHeadAttention(nn.Module):
    """h attentions side by side, each in its own projection of the input (section 3.2.2).

    d_k and d_v default to d_model / heads; `dropout` is on the weights, in training only.
    ValueError for sizes that do not fit.
    """

    def __init__(
        self, d_model: int, heads: int, d_k: int | None = None, d_v: int | None = None,
        bias: bool = True, dropout: float = 0.0,
    ):
        super().__init__()
        d_k, d_v = head_sizes(d_model, heads, d_k, d_v)
        self.heads, self.dropout = heads, dropout
        self.query = nn.Linear(d_model, heads * d_k, bias=bias)
        self.key = nn.Linear(d_model, heads * d_k, bias=bias)
        self.value = nn.Linear(d_model, heads * d_v, bias=bias)
        self.output = nn.Linear(heads * d_v, d_model, bias=bias)

    def forward(
        self, query: Tensor, memory: Tensor, mask: Tensor | None = None,
        need_weights: bool = False, cache: KeyValueCache | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Queries from `query` (B, T, D), keys and values from `memory` (B, S, D).

        mask boolean, True = may attend, broadcastable to (B, H, T, S). Returns the output
        (B, T, D) and, when asked for, the weights (B, H, T, S) before dropout, else None.
        """
        q = self.split(self.query(query))
        k, v = self.keys_values(query, memory, cache)
        dropout = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            output, weights = scaled_dot_product_attention(q, k, v, mask)
            if dropout:
                output = F.dropout(weights, dropout) @ v
        else:
            output = fused_attention(q, k, v, mask, dropout)
        return self.output(output.transpose(1, 2).flatten(2)), weights

    def keys_values(
        self, query: Tensor, memory: Tensor, cache: KeyValueCache | None = None
    ) -> tuple[Tensor, Tensor]:
        """Keys (B, H, S, d_k) and values (B, H, S, d_v), through the cache when there is one.

        Self-attention, where `query` is `memory`, appends to it. The memory of
        cross-attention never changes, so it is projected once.
        """
        if cache is not None and query is not memory and cache.key is not None:
            return cache.key, cache.value
        key, value = self.split(self.key(memory)), self.split(self.value(memory))
        return (key, value) if cache is None else cache.append(key, value)

    def split(self, x: Tensor) -> Tensor:
        """(B, T, H d) -> (B, H, T, d)."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


def draw_attention(axis, weights: Tensor, queries=None, keys=None):
    """Draw weights (T, S) on a matplotlib axis: a row for each query, a column for each key.

    `queries` and `keys` are their labels. Returns the image. ValueError when the number of
    labels is not that of rows or columns.
    """
    image = axis.imshow(weights.detach().float().cpu().numpy(), vmin=0, vmax=1, cmap="Blues")
    axis.set(xlabel="keys", ylabel="queries")
    for labels, size, set_ticks in (
        (queries, weights.size(0), axis.set_yticks),
        (keys, weights.size(1), axis.set_xticks),
    ):
        if labels is not None and len(labels) != size:
            raise ValueError(f"{len(labels)} labels for weights of shape {tuple(weights.shape)}")
        set_ticks(range(size), range(1, size + 1) if labels is None else labels)
    return image
