"""Scaled dot-product and multi-head attention (paper section 3.2)."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def open_dead_rows(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return a mask in which every query may attend to something, and which rows were dead.

    A query that may attend to nothing has no softmax. It is let see every key, and its output is
    set to zero afterwards: no NaN is ever made, in value or gradient, on any backend.
    """
    dead = ~mask.any(dim=-1, keepdim=True)
    return mask | dead, dead


def check_mask(mask: Tensor | None) -> None:
    if mask is not None and mask.dtype != torch.bool:
        raise ValueError(f"a mask is boolean, True = may attend; this one is {mask.dtype}")


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V, in the open (section 3.2.1).

    query (..., T, d_k), key (..., S, d_k), value (..., S, d_v), mask broadcastable to (..., T, S),
    True = may attend. Returns the output (..., T, d_v) and the weights (..., T, S). A query that
    may attend to nothing gets zeros. ValueError for a mask that is not boolean.
    """
    check_mask(mask)
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
    if mask is None:
        weights = scores.softmax(dim=-1)
    else:
        mask, dead = open_dead_rows(mask)
        weights = scores.masked_fill(~mask, -math.inf).softmax(dim=-1).masked_fill(dead, 0.0)
    return weights @ value, weights


def fused_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, dropout: float = 0.0
) -> Tensor:
    """The same output from torch's fused kernel, which never stores the weights."""
    check_mask(mask)
    if mask is None:
        return F.scaled_dot_product_attention(query, key, value, dropout_p=dropout)
    mask, dead = open_dead_rows(mask)
    output = F.scaled_dot_product_attention(query, key, value, mask, dropout_p=dropout)
    return output.masked_fill(dead, 0.0)


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

    d_k and d_v default to d_model / heads. ValueError when heads do not divide d_model.
    """

    def __init__(
        self,
        d_model: int,
        heads: int,
        d_k: int | None = None,
        d_v: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
    ):
        super().__init__()
        if (d_k is None or d_v is None) and d_model % heads:
            raise ValueError(f"d_model {d_model} is not divisible by heads {heads}")
        self.heads = heads
        self.dropout = dropout
        d_k, d_v = d_k or d_model // heads, d_v or d_model // heads
        self.query = nn.Linear(d_model, heads * d_k, bias=bias)
        self.key = nn.Linear(d_model, heads * d_k, bias=bias)
        self.value = nn.Linear(d_model, heads * d_v, bias=bias)
        self.output = nn.Linear(heads * d_v, d_model, bias=bias)

    def forward(
        self,
        query: Tensor,
        memory: Tensor,
        mask: Tensor | None = None,
        need_weights: bool = False,
        cache: KeyValueCache | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Queries from `query` (B, T, D), keys and values from `memory` (B, S, D).

        Returns the output (B, T, D) and, when asked for, the weights (B, H, T, S).
        With a cache, self-attention appends; cross-attention, whose memory never changes,
        projects it once.
        """
        q = self.split(self.query(query))
        if cache is None:
            k, v = self.split(self.key(memory)), self.split(self.value(memory))
        elif query is memory:
            k, v = cache.append(self.split(self.key(memory)), self.split(self.value(memory)))
        else:
            if cache.key is None:
                cache.append(self.split(self.key(memory)), self.split(self.value(memory)))
            k, v = cache.key, cache.value
        weights = None
        if need_weights:
            output, weights = scaled_dot_product_attention(q, k, v, mask)
        else:
            output = fused_attention(q, k, v, mask, self.dropout if self.training else 0.0)
        return self.output(output.transpose(1, 2).flatten(2)), weights

    def split(self, x: Tensor) -> Tensor:
        """(B, T, H d) -> (B, H, T, d)."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
