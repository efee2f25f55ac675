"""Torch's own Transformer modules holding the weights of ours, and small models for the tests."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from transformer.attention import MultiHeadAttention
from transformer.model import Transformer, TransformerConfig

TINY = {"vocab_size": 40, "layers": 2, "d_model": 32, "d_ff": 48, "heads": 4, "dropout": 0.0}

# A parameter of torch's module, and those of ours which it holds side by side.
Pairs = Iterator[tuple[nn.Parameter, list[nn.Parameter]]]


def build(seed: int = 0, **changes) -> Transformer:
    """A tiny model, every parameter random: biases and norms too, which start at 0 and 1."""
    generator = torch.Generator().manual_seed(seed)
    model = Transformer(TransformerConfig(**{**TINY, **changes}), generator)
    return shake(model, generator).eval()


@torch.no_grad()
def shake(module: nn.Module, generator: torch.Generator) -> nn.Module:
    for parameter in module.parameters():
        parameter.add_(torch.empty_like(parameter).normal_(std=0.1, generator=generator))
    return module


def tokens(rows: int, length: int, seed: int = 0, avoid: tuple[int, ...] = (0, 1, 2)) -> Tensor:
    """(rows, length) random ids of the tiny vocabulary, none of them in `avoid`."""
    allowed = torch.tensor([i for i in range(TINY["vocab_size"]) if i not in avoid])
    generator = torch.Generator().manual_seed(seed)
    return allowed[torch.randint(len(allowed), (rows, length), generator=generator)]


def attention_pairs(theirs: nn.MultiheadAttention, ours: MultiHeadAttention) -> Pairs:
    parts = (ours.query, ours.key, ours.value)
    yield theirs.in_proj_weight, [part.weight for part in parts]
    yield theirs.in_proj_bias, [part.bias for part in parts]
    yield theirs.out_proj.weight, [ours.output.weight]
    yield theirs.out_proj.bias, [ours.output.bias]


def layer_pairs(theirs: nn.Module, ours: nn.Module) -> Pairs:
    """Of an encoder or decoder layer."""
    yield from attention_pairs(theirs.self_attn, ours.self_attention)
    if hasattr(ours, "cross_attention"):
        yield from attention_pairs(theirs.multihead_attn, ours.cross_attention)
    modules = [
        (theirs.linear1, ours.feed_forward.inner),
        (theirs.linear2, ours.feed_forward.outer),
    ]
    for number, sub_layer in enumerate(ours.sub_layers, 1):
        modules.append((getattr(theirs, f"norm{number}"), sub_layer.layer_norm))
    for their, our in modules:
        yield their.weight, [our.weight]
        yield their.bias, [our.bias]


def stack_pairs(theirs: nn.Module, ours: nn.Module) -> Pairs:
    """Of an encoder or a decoder."""
    for their, our in zip(theirs.layers, ours.layers, strict=True):
        yield from layer_pairs(their, our)
    if theirs.norm is not None:
        yield theirs.norm.weight, [ours.final_norm.weight]
        yield theirs.norm.bias, [ours.final_norm.bias]


@torch.no_grad()
def give_weights(pairs: Pairs) -> None:
    """Copy the values of our parameters into torch's."""
    for their, ours in pairs:
        their.copy_(torch.cat(ours))


def assert_same_gradients(pairs: Pairs, atol: float = 1e-5, rtol: float = 1e-4) -> None:
    compared = 0
    for their, ours in pairs:
        gradient = torch.cat([parameter.grad for parameter in ours])
        torch.testing.assert_close(gradient, their.grad, atol=atol, rtol=rtol)
        compared += 1
    assert compared


def torch_layer(kind: type, norm: str, d_model: int = 32, heads: int = 4, d_ff: int = 48):
    """An `nn.TransformerEncoderLayer` or `nn.TransformerDecoderLayer` of the tiny shape."""
    return kind(
        d_model, heads, d_ff, dropout=0.0, layer_norm_eps=1e-6, batch_first=True,
        norm_first=norm == "pre",
    )  # fmt: skip


def torch_stacks(model: Transformer) -> nn.Transformer:
    """An `nn.Transformer` with the weights of our two stacks."""
    c = model.config
    norms = [nn.LayerNorm(c.d_model, eps=1e-6) if c.norm == "pre" else None for _ in range(2)]
    theirs = nn.Transformer(
        c.d_model, c.heads, batch_first=True, dropout=0.0,
        custom_encoder=nn.TransformerEncoder(
            torch_layer(nn.TransformerEncoderLayer, c.norm), c.layers, norms[0],
            enable_nested_tensor=False,
        ),
        custom_decoder=nn.TransformerDecoder(
            torch_layer(nn.TransformerDecoderLayer, c.norm), c.layers, norms[1]
        ),
    )  # fmt: skip
    give_weights(stack_pairs(theirs.encoder, model.encoder))
    give_weights(stack_pairs(theirs.decoder, model.decoder))
    return theirs
