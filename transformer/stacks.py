# Written from chapters/3-1-stacks.ipynb by chapters/_book/export.py. Edit the chapter.
"""Encoder and decoder stacks: residual sub-layers, layers, stacks (paper section 3.1)."""

__all__ = [
    "Decoder",
    "DecoderLayer",
    "Encoder",
    "EncoderLayer",
    "NORMS",
    "SubLayer",
    "final_norm",
]

from collections.abc import Callable, Sequence

from torch import Tensor, nn

NORMS = ("post", "pre")


class SubLayer(nn.Module):
    """A residual connection around a function, with dropout and layer normalisation.

    `norm="post"` is the paper (3.1, 5.4): LayerNorm(x + Dropout(function(x))).
    `norm="pre"` is the later variant: x + Dropout(function(LayerNorm(x))).
    ValueError for another norm, or a dropout outside [0, 1].
    """

    def __init__(
        self, d_model: int, dropout: float = 0.1, norm: str = "post", eps: float = 1e-6
    ):
        super().__init__()
        if norm not in NORMS:
            raise ValueError(f"norm is one of {NORMS}, not {norm!r}")
        self.norm = norm
        self.layer_norm = nn.LayerNorm(d_model, eps=eps)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply `function`, which maps (B, T, D) to (B, T, D), to x (B, T, D)."""
        if self.norm == "pre":
            return x + self.dropout(function(self.layer_norm(x)))
        return self.layer_norm(x + self.dropout(function(x)))


class EncoderLayer(nn.Module):
    """Self-attention, then the feed-forward network, each in a `SubLayer` (section 3.1).

    The keywords in `sub_layer` (dropout, norm, eps) go to both sub-layers.
    """

    def __init__(
        self, self_attention: nn.Module, feed_forward: nn.Module, d_model: int, **sub_layer
    ):
        super().__init__()
        self.self_attention = self_attention
        self.feed_forward = feed_forward
        self.sub_layers = nn.ModuleList(SubLayer(d_model, **sub_layer) for _ in range(2))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, S, D), mask broadcastable to (B, H, S, S) -> (B, S, D)."""
        x = self.sub_layers[0](x, lambda y: self.self_attention(y, y, mask)[0])
        return self.sub_layers[1](x, self.feed_forward)


class DecoderLayer(nn.Module):
    """Masked self-attention, attention over the memory, feed-forward network (section 3.1).

    The keywords in `sub_layer` (dropout, norm, eps) go to all three sub-layers.
    """

    def __init__(
        self,
        self_attention: nn.Module,
        cross_attention: nn.Module,
        feed_forward: nn.Module,
        d_model: int,
        **sub_layer,
    ):
        super().__init__()
        self.self_attention = self_attention
        self.cross_attention = cross_attention
        self.feed_forward = feed_forward
        self.sub_layers = nn.ModuleList(SubLayer(d_model, **sub_layer) for _ in range(3))

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        self_mask: Tensor | None = None,
        cross_mask: Tensor | None = None,
        caches: tuple | None = None,
    ) -> Tensor:
        """(B, T, D) and memory (B, S, D) -> (B, T, D).

        `self_mask` is broadcastable to (B, H, T, T), `cross_mask` to (B, H, T, S). `caches` is
        (self-attention's, cross-attention's) when decoding step by step.
        """
        own, cross = caches or (None, None)
        x = self.sub_layers[0](
            x, lambda y: self.self_attention(y, y, self_mask, cache=own)[0]
        )
        x = self.sub_layers[1](
            x, lambda y: self.cross_attention(y, memory, cross_mask, cache=cross)[0]
        )
        return self.sub_layers[2](x, self.feed_forward)


class Encoder(nn.Module):
    """A stack of encoder layers; only a pre-norm stack ends in a norm of its own (3.1)."""

    def __init__(self, layers: Sequence[EncoderLayer]):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.final_norm = final_norm(self.layers)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, S, D), mask broadcastable to (B, H, S, S) -> memory (B, S, D)."""
        for layer in self.layers:
            x = layer(x, mask)
        return self.final_norm(x)


def final_norm(layers: Sequence[nn.Module]) -> nn.Module:
    """Return the LayerNorm that ends a pre-norm stack; a post-norm stack needs nothing.

    ValueError when there is no layer.
    """
    if not len(layers):
        raise ValueError("a stack needs at least one layer")
    last = layers[-1].sub_layers[-1]
    if last.norm == "post":
        return nn.Identity()
    return nn.LayerNorm(last.layer_norm.normalized_shape, eps=last.layer_norm.eps)


class Decoder(nn.Module):
    """A stack of decoder layers, each reading the same memory (section 3.1)."""

    def __init__(self, layers: Sequence[DecoderLayer]):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.final_norm = final_norm(self.layers)

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        self_mask: Tensor | None = None,
        cross_mask: Tensor | None = None,
        caches: Sequence[tuple] | None = None,
    ) -> Tensor:
        """(B, T, D) and memory (B, S, D) -> (B, T, D); masks as in `DecoderLayer`.

        `caches` holds one pair for each layer.
        """
        for i, layer in enumerate(self.layers):
            x = layer(x, memory, self_mask, cross_mask, caches[i] if caches else None)
        return self.final_norm(x)
