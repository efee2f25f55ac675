"""Our layers compute what torch's own modules compute, in value and in gradient.

Torch's masks say True = may not attend. Rows with no key are left out: torch gives NaN there.
"""

import pytest
import torch
from conformance.reference import (
    assert_same_gradients,
    attention_pairs,
    build,
    give_weights,
    layer_pairs,
    shake,
    stack_pairs,
    tokens,
    torch_layer,
    torch_stacks,
)
from torch import nn

from transformer.attention import MultiHeadAttention
from transformer.masks import causal_mask, padding_mask
from transformer.model import TransformerConfig, decoder_layer, encoder_layer

NORMS = pytest.mark.parametrize("norm", ["post", "pre"])


def randn(*shape, seed=0):
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return x.requires_grad_()


def ids_with_pads(rows=3, length=7, seed=0):
    """Real tokens, with pads at the end of all rows but the first."""
    ids = tokens(rows, length, seed)
    for row in range(1, rows):
        ids[row, length - row :] = 0
    return ids


def backward(output):
    """A loss that weighs every entry of the output differently."""
    weighting = torch.randn(output.shape, generator=torch.Generator().manual_seed(99))
    (output * weighting.to(output.dtype)).sum().backward()


def same_inputs(*tensors):
    return [tensor.detach().clone().requires_grad_() for tensor in tensors]


def assert_same(ours, theirs, atol=1e-5):
    torch.testing.assert_close(ours, theirs, atol=atol, rtol=1e-4)


@pytest.mark.parametrize("masked", ["nothing", "padding", "causal", "both"])
@pytest.mark.parametrize("need_weights", [False, True])
def test_multi_head_attention(masked, need_weights):
    ours = shake(MultiHeadAttention(32, 4), torch.Generator().manual_seed(0))
    theirs = nn.MultiheadAttention(32, 4, batch_first=True)
    give_weights(attention_pairs(theirs, ours))
    x = randn(3, 7, 32)
    (y,) = same_inputs(x)
    mask = torch.ones(1, 1, 1, 7, dtype=torch.bool)
    options = {}
    if masked in ("padding", "both"):
        mask = mask & padding_mask(ids_with_pads(), 0)
        options["key_padding_mask"] = ids_with_pads() == 0
    if masked in ("causal", "both"):
        mask = mask & causal_mask(7)
        options["attn_mask"] = ~causal_mask(7)
    output, weights = ours(x, x, None if masked == "nothing" else mask, need_weights)
    expected, their_weights = theirs(
        y, y, y, need_weights=need_weights, average_attn_weights=False, **options
    )
    assert_same(output, expected)
    assert (weights is None) == (not need_weights)
    if need_weights:
        assert_same(weights, their_weights)
    backward(output)
    backward(expected)
    assert_same(x.grad, y.grad)
    assert_same_gradients(attention_pairs(theirs, ours))


def test_multi_head_attention_over_another_sequence():
    ours = shake(MultiHeadAttention(32, 4), torch.Generator().manual_seed(0))
    theirs = nn.MultiheadAttention(32, 4, batch_first=True)
    give_weights(attention_pairs(theirs, ours))
    query, memory = randn(3, 5, 32), randn(3, 7, 32, seed=1)
    their_query, their_memory = same_inputs(query, memory)
    output, _ = ours(query, memory, padding_mask(ids_with_pads(), 0))
    expected, _ = theirs(
        their_query, their_memory, their_memory, key_padding_mask=ids_with_pads() == 0
    )
    assert_same(output, expected)
    backward(output)
    backward(expected)
    assert_same(query.grad, their_query.grad)
    assert_same(memory.grad, their_memory.grad)
    assert_same_gradients(attention_pairs(theirs, ours))


@NORMS
def test_encoder_layer(norm):
    config = TransformerConfig(40, 1, 32, 48, 4, dropout=0.0, norm=norm)
    ours = shake(encoder_layer(config), torch.Generator().manual_seed(0))
    theirs = torch_layer(nn.TransformerEncoderLayer, norm)
    give_weights(layer_pairs(theirs, ours))
    x = randn(3, 7, 32)
    (y,) = same_inputs(x)
    output = ours(x, padding_mask(ids_with_pads(), 0))
    expected = theirs(y, src_key_padding_mask=ids_with_pads() == 0)
    assert_same(output, expected)
    backward(output)
    backward(expected)
    assert_same(x.grad, y.grad)
    assert_same_gradients(layer_pairs(theirs, ours))


@NORMS
def test_decoder_layer(norm):
    config = TransformerConfig(40, 1, 32, 48, 4, dropout=0.0, norm=norm)
    ours = shake(decoder_layer(config), torch.Generator().manual_seed(0))
    theirs = torch_layer(nn.TransformerDecoderLayer, norm)
    give_weights(layer_pairs(theirs, ours))
    x, memory = randn(3, 5, 32), randn(3, 7, 32, seed=1)
    y, their_memory = same_inputs(x, memory)
    target = ids_with_pads(length=5)
    output = ours(
        x, memory, causal_mask(5) & padding_mask(target, 0), padding_mask(ids_with_pads(), 0)
    )
    expected = theirs(
        y, their_memory, tgt_mask=~causal_mask(5), tgt_key_padding_mask=target == 0,
        memory_key_padding_mask=ids_with_pads() == 0,
    )  # fmt: skip
    assert_same(output, expected)
    backward(output)
    backward(expected)
    assert_same(x.grad, y.grad)
    assert_same(memory.grad, their_memory.grad)
    assert_same_gradients(layer_pairs(theirs, ours))


def torch_logits(model, stacks, source, target):
    """The whole model, with torch's stacks between our embeddings."""
    x = model.positions(model.source_embeddings(source))
    y = model.positions(model.target_embeddings(target))
    output = stacks(
        x, y, tgt_mask=~causal_mask(target.size(1)), src_key_padding_mask=source == 0,
        tgt_key_padding_mask=target == 0, memory_key_padding_mask=source == 0,
    )  # fmt: skip
    return model.generator.logits(output)


@NORMS
@pytest.mark.parametrize("training", [True, False])
def test_whole_model_equals_nn_transformer_between_our_embeddings(norm, training):
    model = build(norm=norm).train(training)
    stacks = torch_stacks(model).train(training)
    source, target = ids_with_pads(), ids_with_pads(length=5, seed=1)
    logits, expected = model(source, target), torch_logits(model, stacks, source, target)
    assert_same(logits, expected, atol=1e-4)


@NORMS
def test_whole_model_has_the_gradients_of_nn_transformer(norm):
    model = build(norm=norm).train()
    stacks = torch_stacks(model).train()
    source, target = ids_with_pads(), ids_with_pads(length=5, seed=1)
    matrix = model.source_embeddings.table.weight

    backward(model(source, target))
    by_ours, matrix.grad = matrix.grad, None
    backward(torch_logits(model, stacks, source, target))
    assert_same(by_ours, matrix.grad, atol=1e-3)
    for their, our in ((stacks.encoder, model.encoder), (stacks.decoder, model.decoder)):
        assert_same_gradients(stack_pairs(their, our), atol=1e-3)


@NORMS
def test_whole_model_in_double_precision_equals_nn_transformer_to_1e_10(norm):
    model = build(norm=norm).double()
    stacks = torch_stacks(model).double()
    give_weights(stack_pairs(stacks.encoder, model.encoder))
    give_weights(stack_pairs(stacks.decoder, model.decoder))
    source, target = ids_with_pads(), ids_with_pads(length=5, seed=1)
    logits = model(source, target)
    expected = torch_logits(model, stacks.train(), source, target)
    assert (logits - expected).abs().max() < 1e-10


def relative_error(x, exact):
    return ((x.double() - exact).norm() / exact.norm()).item()


@NORMS
def test_bf16_is_as_close_to_float64_as_torchs_modules_in_value_and_gradient(norm):
    source, target = ids_with_pads(), ids_with_pads(length=5, seed=1)
    # One set of weights that bf16 holds exactly, so that only the computing differs.
    weights = {name: w.bfloat16() for name, w in build(norm=norm).state_dict().items()}

    def run(dtype, with_torch):
        model = build(norm=norm).to(dtype)
        model.load_state_dict(weights)
        if with_torch:
            stacks = torch_stacks(model.float()).to(dtype).train()
            logits = torch_logits(model.to(dtype), stacks, source, target)
        else:
            logits = model(source, target)
        backward(logits)
        return logits.detach(), model.source_embeddings.table.weight.grad

    exact = run(torch.float64, False)
    ours, theirs = run(torch.bfloat16, False), run(torch.bfloat16, True)
    for our, their, reference in zip(ours, theirs, exact, strict=True):
        assert our.dtype == torch.bfloat16
        assert 1e-4 < relative_error(our, reference) < 0.05
        assert relative_error(our, reference) < 1.5 * relative_error(their, reference)
