# Written from chapters/3-6-model.ipynb by chapters/_book/export.py. Edit the chapter.
"""The Transformer: configuration, presets, first weights (paper sections 3, 6.2)."""

__all__ = [
    "DecoderCache",
    "PRESETS",
    "Transformer",
    "TransformerConfig",
    "attention",
    "check_config",
    "check_types",
    "count_parameters",
    "decoder_layer",
    "encoder_layer",
    "glorot",
    "initialise",
]

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn

from transformer.attention import KeyValueCache, MultiHeadAttention
from transformer.embeddings import Embeddings
from transformer.encoding import KINDS, PositionalEncoding
from transformer.feed_forward import FeedForward
from transformer.masks import causal_mask, padding_mask
from transformer.stacks import NORMS, Decoder, DecoderLayer, Encoder, EncoderLayer


@dataclass(frozen=True)
class TransformerConfig:
    """The shape of a model. The defaults are the paper's base (Table 3, first row).

    ValueError names the field and the value that do not fit.
    """

    vocab_size: int = 37000
    layers: int = 6
    d_model: int = 512
    d_ff: int = 2048
    heads: int = 8
    d_k: int | None = None  # d_model / heads
    d_v: int | None = None  # d_model / heads
    dropout: float = 0.1
    attention_dropout: float = 0.0  # on the weights; tuned for parsing (section 6.3)
    pad_id: int = 0
    bos_id: int = 1
    eos_id: int = 2

    norm: str = "post"  # "pre": later tensor2tensor
    positions: str = "sinusoidal"  # "concatenated": v1.0.3; "learned": row (E)
    max_length: int = 1024  # binds learned positions alone, sinusoids grow
    tied: bool = True  # False: tensor2tensor's English-French big model
    attention_bias: bool = True  # False: tensor2tensor from November 2017
    target_space: int = 0  # 32: rows of v1.0.3's embedding of the task

    def __post_init__(self):
        check_types(self)
        for name in ("d_k", "d_v"):
            if getattr(self, name) is None:
                d_model, heads = self.d_model, self.heads
                if heads > 0 and d_model % heads:
                    raise ValueError(f"heads {heads} do not divide d_model {d_model}")
                object.__setattr__(self, name, d_model // max(heads, 1))
        check_config(self)

    @classmethod
    def preset(cls, name: str, **changes) -> "TransformerConfig":
        """A named configuration, fields replaced by keyword. ValueError lists the names."""
        if name not in PRESETS:
            raise ValueError(f"no preset {name!r}; there are: {', '.join(PRESETS)}")
        return cls(**{**PRESETS[name], **changes})


def check_types(config) -> None:
    """ValueError for a field of a dataclass whose value is not of the declared type."""
    for field in fields(config):
        value, kind = getattr(config, field.name), field.type
        right = isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool)
        whole = type(value) is int and kind in (float, float | None)
        if not (right or whole) or value != value:  # only NaN differs from itself
            name = getattr(kind, "__name__", kind)
            raise ValueError(f"{field.name} must be of type {name}, not {value!r}")


def check_config(c: TransformerConfig) -> None:
    """ValueError for what no model can have; the message names field and value."""
    sizes = ("vocab_size", "layers", "d_model", "d_ff", "heads", "d_k", "d_v")
    for name in (*sizes, "max_length"):
        if getattr(c, name) < 1:
            raise ValueError(f"{name} must be at least 1, not {getattr(c, name)}")
    if c.d_model % 2 and c.positions != "learned":
        raise ValueError(f"d_model must be even for sines and cosines, not {c.d_model}")
    for name in ("dropout", "attention_dropout"):
        if not 0 <= getattr(c, name) < 1:
            raise ValueError(f"{name} must be in [0, 1), not {getattr(c, name)}")
    ids = {name: getattr(c, name) for name in ("pad_id", "bos_id", "eos_id")}
    for name, value in ids.items():
        if not 0 <= value < c.vocab_size:
            limit = c.vocab_size
            raise ValueError(f"{name} {value} is outside the vocabulary of {limit}")
    if len(set(ids.values())) < 3:
        raise ValueError(f"pad_id, bos_id and eos_id must differ, not {ids}")
    if c.norm not in NORMS:
        raise ValueError(f"norm is one of {NORMS}, not {c.norm!r}")
    if c.positions not in KINDS:
        raise ValueError(f"positions is one of {KINDS}, not {c.positions!r}")
    if c.target_space < 0:
        raise ValueError(f"target_space must be at least 0, not {c.target_space}")


PRESETS = {
    "base": {},
    "A-heads1": {"heads": 1},
    "A-heads4": {"heads": 4},
    "A-heads16": {"heads": 16},
    "A-heads32": {"heads": 32},
    "B-dk16": {"d_k": 16},
    "B-dk32": {"d_k": 32},
    "C-layers2": {"layers": 2},
    "C-layers4": {"layers": 4},
    "C-layers8": {"layers": 8},
    "C-d256": {"d_model": 256},
    "C-d1024": {"d_model": 1024},
    "C-ff1024": {"d_ff": 1024},
    "C-ff4096": {"d_ff": 4096},
    "D-dropout0.0": {"dropout": 0.0},
    "D-dropout0.2": {"dropout": 0.2},
    "D-smoothing0.0": {},
    "D-smoothing0.2": {},
    "E-learned": {"positions": "learned"},
    "big": {"d_model": 1024, "d_ff": 4096, "heads": 16, "dropout": 0.3},
    # Section 6.3 gives layers, width and vocabulary (WSJ alone); the rest is big's.
    "parsing": {
        "layers": 4, "d_model": 1024, "d_ff": 4096, "heads": 16, "vocab_size": 16000,
    },
    # Multi30k and the embedded corpus on two CPU cores.
    "small": {"layers": 4, "d_model": 128, "d_ff": 256, "heads": 4, "vocab_size": 4000},
    "tiny": {"layers": 2, "d_model": 128, "d_ff": 256, "heads": 4, "vocab_size": 1000},
}


class DecoderCache:
    """What step-by-step decoding has already computed, for every decoder layer."""

    def __init__(self, layers: int):
        self.tokens: Tensor | None = None
        self.layers = [(KeyValueCache(), KeyValueCache()) for _ in range(layers)]

    @property
    def length(self) -> int:
        """How many target positions are cached."""
        return 0 if self.tokens is None else self.tokens.size(1)

    def extend(self, tokens: Tensor) -> Tensor:
        """Add (B, T) new tokens and return all (B, length) of them."""
        if self.tokens is not None:
            tokens = torch.cat([self.tokens, tokens], dim=1)
        self.tokens = tokens
        return self.tokens

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order: beams move, sentences finish."""
        if self.tokens is not None:
            self.tokens = self.tokens[rows]
        for own, cross in self.layers:
            own.select(rows)
            cross.select(rows)


class Transformer(nn.Module):
    """Encoder and decoder around one shared matrix (Figure 1).

    The weights are drawn by `initialise`, from `generator` or from torch's own stream.
    """

    def __init__(self, config: TransformerConfig, generator: torch.Generator | None = None):
        super().__init__()
        self.config = c = config
        self.source_embeddings = Embeddings(c.vocab_size, c.d_model)
        # Tied, the three are one module: one tensor to train, to count and to save.
        self.target_embeddings = self.generator = self.source_embeddings
        if not c.tied:
            self.target_embeddings = Embeddings(c.vocab_size, c.d_model)
            self.generator = Embeddings(c.vocab_size, c.d_model)
        self.positions = PositionalEncoding(c.d_model, c.positions, c.max_length)
        self.dropout = nn.Dropout(c.dropout)
        self.target_space = None
        if c.target_space:
            self.target_space = nn.Embedding(c.target_space, c.d_model)
        self.encoder = Encoder([encoder_layer(c) for _ in range(c.layers)])
        self.decoder = Decoder([decoder_layer(c) for _ in range(c.layers)])
        initialise(self, generator)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """(B, S), (B, T) token ids -> logits (B, T, V); position t predicts token t + 1."""
        return self.decode(target, self.encode(source), source)

    def encode(self, source: Tensor) -> Tensor:
        """(B, S) token ids -> memory (B, S, D)."""
        x = self.source_embeddings(source)
        if self.target_space is not None:
            # One task, so one row: tensor2tensor trained the others for other tasks.
            x = x + self.target_space.weight[0]
        x = self.dropout(self.positions(x))
        return self.encoder(x, padding_mask(source, self.config.pad_id))

    def decode(
        self, target: Tensor, memory: Tensor, source: Tensor, cache: DecoderCache | None = None
    ) -> Tensor:
        """(B, T) token ids, memory (B, S, D) of source (B, S) -> logits (B, T, V).

        With a cache, `target` holds only the tokens that follow those already in it.
        """
        if not len(target) == len(memory) == len(source):
            sizes = f"target {len(target)}, memory {len(memory)}, source {len(source)}"
            raise ValueError(f"as many rows are needed of each: {sizes}")
        past, pad_id = cache.length if cache else 0, self.config.pad_id
        x = self.dropout(self.positions(self.target_embeddings(target), start=past))
        seen = cache.extend(target) if cache else target
        self_mask = causal_mask(target.size(1), past, target.device)
        self_mask = self_mask & padding_mask(seen, pad_id)
        cross_mask = padding_mask(source, pad_id)
        caches = cache.layers if cache else None
        x = self.decoder(x, memory, self_mask, cross_mask, caches)
        return self.generator.logits(x)

    def new_cache(self) -> DecoderCache:
        """An empty cache for `decode`."""
        return DecoderCache(self.config.layers)


def attention(c: TransformerConfig) -> MultiHeadAttention:
    return MultiHeadAttention(
        c.d_model, c.heads, c.d_k, c.d_v, c.attention_bias, c.attention_dropout
    )


def encoder_layer(c: TransformerConfig) -> EncoderLayer:
    feed_forward = FeedForward(c.d_model, c.d_ff)
    parts = (attention(c), feed_forward, c.d_model)
    return EncoderLayer(*parts, dropout=c.dropout, norm=c.norm)


def decoder_layer(c: TransformerConfig) -> DecoderLayer:
    parts = (attention(c), attention(c), FeedForward(c.d_model, c.d_ff))
    return DecoderLayer(*parts, c.d_model, dropout=c.dropout, norm=c.norm)


def glorot(linears: list[nn.Linear], generator: torch.Generator | None) -> None:
    """Glorot-uniform weights as if these were one matrix, side by side; biases zero."""
    outputs = sum(linear.out_features for linear in linears)
    limit = math.sqrt(6 / (linears[0].in_features + outputs))
    for linear in linears:
        linear.weight.uniform_(-limit, limit, generator=generator)
        if linear.bias is not None:
            linear.bias.zero_()


@torch.no_grad()
def initialise(model: Transformer, generator: torch.Generator | None = None) -> None:
    """Draw the weights as tensor2tensor v1.0.3 did; the paper does not say how."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            glorot([module], generator)
        elif isinstance(module, nn.Embedding):
            module.weight.normal_(std=module.embedding_dim**-0.5, generator=generator)
    for layer in [*model.encoder.layers, *model.decoder.layers]:
        own = layer.self_attention
        glorot([own.query, own.key, own.value], generator)
        if isinstance(layer, DecoderLayer):
            cross = layer.cross_attention
            glorot([cross.key, cross.value], generator)
    if model.config.positions == "learned":
        table = model.positions.table
        table.normal_(std=table.size(1) ** -0.5, generator=generator)


def count_parameters(model: nn.Module) -> int:
    """Trainable numbers, a shared tensor counted once."""
    return sum(parameter.numel() for parameter in model.parameters())
