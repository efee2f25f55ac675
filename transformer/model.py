"""The Transformer: configuration, presets, initialisation, the model (paper sections 3 and 6.2)."""

import math
from dataclasses import dataclass

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
    """Everything that decides the model's shape. The defaults are the paper's base model.

    `d_k` and `d_v` default to d_model / heads. The last group names the departures of
    tensor2tensor v1.0.3 and of later work from the paper's text.
    """

    vocab_size: int = 37000
    layers: int = 6
    d_model: int = 512
    d_ff: int = 2048
    heads: int = 8
    d_k: int | None = None
    d_v: int | None = None
    dropout: float = 0.1
    attention_dropout: float = 0.0
    pad_id: int = 0
    bos_id: int = 1
    eos_id: int = 2

    norm: str = "post"
    positions: str = "sinusoidal"
    max_length: int = 1024
    tied: bool = True
    attention_bias: bool = True
    target_space: int = 0

    def __post_init__(self):
        for name in ("vocab_size", "layers", "d_model", "d_ff", "heads", "max_length"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.d_model % 2 and self.positions != "learned":
            raise ValueError(f"d_model must be even for sinusoids, not {self.d_model}")
        for name in ("d_k", "d_v"):
            if getattr(self, name) is None:
                if self.d_model % self.heads:
                    raise ValueError(f"heads {self.heads} do not divide d_model {self.d_model}")
                object.__setattr__(self, name, self.d_model // self.heads)
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("dropout", "attention_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be in [0, 1), not {getattr(self, name)}")
        for name in ("pad_id", "bos_id", "eos_id"):
            if not 0 <= getattr(self, name) < self.vocab_size:
                limit = self.vocab_size
                raise ValueError(f"{name} {getattr(self, name)} is outside the vocabulary of {limit}")
        if len({self.pad_id, self.bos_id, self.eos_id}) < 3:
            raise ValueError("pad_id, bos_id and eos_id must differ")
        if self.norm not in NORMS or self.positions not in KINDS:
            raise ValueError(f"norm {self.norm!r} or positions {self.positions!r} is unknown")

    @classmethod
    def preset(cls, name: str, **changes) -> "TransformerConfig":
        """A named configuration, with fields replaced by keyword. ValueError lists the names."""
        if name not in PRESETS:
            raise ValueError(f"no preset {name!r}; there are: {', '.join(PRESETS)}")
        return cls(**{**PRESETS[name], **changes})


# Each preset says where it departs from base; Table 3's rows carry the paper's letters.
PRESETS = {
    "base": {},
    "big": {"d_model": 1024, "d_ff": 4096, "heads": 16, "dropout": 0.3},
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
    "D-dropout0": {"dropout": 0.0},
    "D-dropout2": {"dropout": 0.2},
    "D-smoothing0": {},
    "D-smoothing2": {},
    "E-learned": {"positions": "learned"},
    "parsing": {"layers": 4, "d_model": 1024, "d_ff": 4096, "heads": 16, "vocab_size": 16000},
    # Ours: what two CPU cores train, on Multi30k and on the embedded corpus.
    "small": {"layers": 4, "d_model": 128, "d_ff": 256, "heads": 4, "dropout": 0.2, "vocab_size": 4000},
    "tiny": {"layers": 2, "d_model": 128, "d_ff": 256, "heads": 4, "vocab_size": 1000},
}


class DecoderCache:
    """What step-by-step decoding has already computed, for every layer of the decoder."""

    def __init__(self, layers: int):
        self.tokens: Tensor | None = None
        self.layers = [(KeyValueCache(), KeyValueCache()) for _ in range(layers)]

    @property
    def length(self) -> int:
        """How many target positions are cached."""
        return 0 if self.tokens is None else self.tokens.size(1)

    def extend(self, tokens: Tensor) -> Tensor:
        """Add (B, T) new tokens and return all (B, length) of them."""
        self.tokens = tokens if self.tokens is None else torch.cat([self.tokens, tokens], dim=1)
        return self.tokens

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order: beams move, sentences finish."""
        if self.tokens is not None:
            self.tokens = self.tokens[rows]
        for own, cross in self.layers:
            own.select(rows)
            cross.select(rows)


class Transformer(nn.Module):
    """Encoder and decoder between one shared matrix (Figure 1)."""

    def __init__(self, config: TransformerConfig, generator: torch.Generator | None = None):
        super().__init__()
        self.config = c = config
        self.source_embeddings = Embeddings(c.vocab_size, c.d_model)
        # Tied: the three are one module, so there is one tensor to train, count and save.
        self.target_embeddings = (
            self.source_embeddings if c.tied else Embeddings(c.vocab_size, c.d_model)
        )
        self.generator = self.source_embeddings if c.tied else Embeddings(c.vocab_size, c.d_model)
        self.positions = PositionalEncoding(c.d_model, c.positions, c.max_length)
        self.dropout = nn.Dropout(c.dropout)
        self.target_space = nn.Embedding(c.target_space, c.d_model) if c.target_space else None
        self.encoder = Encoder([self.encoder_layer() for _ in range(c.layers)])
        self.decoder = Decoder([self.decoder_layer() for _ in range(c.layers)])
        initialise(self, generator)

    def attention(self) -> MultiHeadAttention:
        c = self.config
        return MultiHeadAttention(
            c.d_model, c.heads, c.d_k, c.d_v, c.attention_bias, c.attention_dropout
        )

    def encoder_layer(self) -> EncoderLayer:
        c = self.config
        feed_forward = FeedForward(c.d_model, c.d_ff)
        return EncoderLayer(
            self.attention(), feed_forward, c.d_model, dropout=c.dropout, norm=c.norm
        )

    def decoder_layer(self) -> DecoderLayer:
        c = self.config
        feed_forward = FeedForward(c.d_model, c.d_ff)
        return DecoderLayer(
            self.attention(), self.attention(), feed_forward, c.d_model, dropout=c.dropout, norm=c.norm
        )

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """(B, S) and (B, T) token ids -> logits (B, T, V); position t predicts token t + 1."""
        return self.decode(target, self.encode(source), source)

    def encode(self, source: Tensor) -> Tensor:
        """(B, S) -> memory (B, S, D)."""
        x = self.source_embeddings(source)
        if self.target_space is not None:
            x = x + self.target_space.weight[0]
        x = self.dropout(self.positions(x))
        return self.encoder(x, padding_mask(source, self.config.pad_id))

    def decode(
        self, target: Tensor, memory: Tensor, source: Tensor, cache: DecoderCache | None = None
    ) -> Tensor:
        """(B, T) and memory (B, S, D) -> logits (B, T, V).

        With a cache, `target` holds only the tokens that follow those already in it.
        """
        past = cache.length if cache else 0
        seen = cache.extend(target) if cache else target
        x = self.dropout(self.positions(self.target_embeddings(target), start=past))
        self_mask = causal_mask(target.size(1), past, target.device)
        self_mask = self_mask & padding_mask(seen, self.config.pad_id)
        cross_mask = padding_mask(source, self.config.pad_id)
        x = self.decoder(x, memory, self_mask, cross_mask, cache.layers if cache else None)
        return self.generator.logits(x)

    def new_cache(self) -> DecoderCache:
        """An empty cache for `decode`."""
        return DecoderCache(self.config.layers)


@torch.no_grad()
def initialise(model: Transformer, generator: torch.Generator | None = None) -> None:
    """Draw the weights as tensor2tensor v1.0.3 did; the paper does not say how.

    Glorot-uniform matrices, zero biases, embeddings normal with standard deviation d_model^-0.5.
    Self-attention's Q, K, V were one matrix there, cross-attention's K, V too: their common width
    sets the limit.
    """
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
        model.positions.table.normal_(std=model.config.d_model**-0.5, generator=generator)


def glorot(linears: list[nn.Linear], generator: torch.Generator | None) -> None:
    """Glorot-uniform as if these were one matrix, side by side; biases zero."""
    outputs = sum(linear.out_features for linear in linears)
    limit = math.sqrt(6 / (linears[0].in_features + outputs))
    for linear in linears:
        linear.weight.uniform_(-limit, limit, generator=generator)
        if linear.bias is not None:
            linear.bias.zero_()


def count_parameters(model: nn.Module) -> int:
    """Trainable numbers, a shared tensor counted once."""
    return sum(parameter.numel() for parameter in model.parameters())
