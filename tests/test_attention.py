"""Scaled dot-product attention, multi-head attention and its cache (chapter 3.2)."""

import math

import pytest
import torch
from torch import nn

from transformer.attention import (
    KeyValueCache,
    MultiHeadAttention,
    draw_attention,
    fused_attention,
    scaled_dot_product_attention,
)


def explicit_attention(query, key, value, mask=None):
    return scaled_dot_product_attention(query, key, value, mask)[0]


PATHS = pytest.mark.parametrize("attend", [explicit_attention, fused_attention])
SHAPES = ((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 4))  # d_k 8, d_v 4


def random_inputs(dtype=torch.float32, seed=0, shapes=SHAPES):
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(s, generator=g, dtype=torch.float64).to(dtype) for s in shapes]


def random_mask(seed=1):
    """(2, 1, 5, 7), no row of it dead."""
    mask = torch.rand(2, 1, 5, 7, generator=torch.Generator().manual_seed(seed)) < 0.6
    mask[..., 0] = True
    return mask


def value_and_gradients(attend, inputs, mask=None):
    inputs = [x.clone().requires_grad_() for x in inputs]
    output = attend(*inputs, mask)
    weighting = torch.linspace(-1, 1, output.numel(), dtype=torch.float64).view_as(output)
    (output * weighting.to(output.dtype)).sum().backward()
    return [output.detach(), *(x.grad for x in inputs)]


def same_weights(d_model, heads):
    """Our attention and torch's, holding the same random weights and biases."""
    torch.manual_seed(0)
    ours = MultiHeadAttention(d_model, heads)
    theirs = nn.MultiheadAttention(d_model, heads, batch_first=True)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.uniform_(-0.3, 0.3)
        parts = (ours.query, ours.key, ours.value)
        theirs.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        theirs.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        theirs.out_proj.weight.copy_(ours.output.weight)
        theirs.out_proj.bias.copy_(ours.output.bias)
    return ours, theirs


@PATHS
def test_weights_follow_the_softmax_of_the_scaled_scores(attend):
    # Scores 2 log 3 / sqrt(4) = log 3 and 0: weights 3/4 and 1/4.
    query = torch.tensor([[2 * math.log(3), 0.0, 0.0, 0.0]])
    key = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]])
    value = torch.tensor([[4.0, 0.0], [0.0, 8.0]])
    torch.testing.assert_close(attend(query, key, value), torch.tensor([[3.0, 2.0]]))


def test_explicit_attention_returns_weights_that_sum_to_one():
    output, weights = scaled_dot_product_attention(*random_inputs(), random_mask())
    assert output.shape == (2, 3, 5, 4) and weights.shape == (2, 3, 5, 7)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, 5))
    assert not weights[~random_mask().expand_as(weights)].any()


@pytest.mark.parametrize("mask", [None, random_mask()], ids=["open", "masked"])
def test_fused_equals_explicit_in_value_and_gradient(mask):
    inputs = random_inputs(torch.float64)
    explicit = value_and_gradients(explicit_attention, inputs, mask)
    for a, b in zip(explicit, value_and_gradients(fused_attention, inputs, mask), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@PATHS
@pytest.mark.parametrize(("dtype", "bound"), [(torch.bfloat16, 0.01), (torch.float16, 0.002)])
def test_half_precision_stays_close_to_float64(attend, dtype, bound):
    inputs = random_inputs(dtype)
    exact = value_and_gradients(attend, [x.double() for x in inputs], random_mask())
    rounded = value_and_gradients(attend, inputs, random_mask())
    for r, e in zip(rounded, exact, strict=True):
        assert r.dtype == dtype
        assert (r.double() - e).norm() < bound * e.norm()


@PATHS
def test_masking_and_large_scores_do_not_overflow_in_fp16(attend):
    # q.k is 102,400, beyond fp16; q.k / sqrt(d_k) is 12,800.
    x = torch.full((1, 3, 64), 40.0, dtype=torch.float16)
    value = torch.tensor([[[1.0], [3.0], [9.0]]], dtype=torch.float16)
    mask = torch.tensor([[True, True, False]])
    assert attend(x, x, value, mask).flatten().tolist() == [2.0, 2.0, 2.0]


@PATHS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_a_query_that_may_attend_to_nothing_gets_zeros_and_finite_gradients(attend, dtype):
    mask = random_mask()
    mask[0, 0, 2] = False
    output, *gradients = value_and_gradients(attend, random_inputs(dtype), mask)
    assert not output[0, :, 2].any() and output[1, :, 2].all()
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert not gradients[0][0, :, 2].any() and gradients[0][1, :, 2].any()


@PATHS
def test_a_sentence_whose_keys_are_all_masked_changes_no_other(attend):
    inputs, mask = random_inputs(), torch.ones(2, 1, 1, 7, dtype=torch.bool)
    mask[0] = False
    output = attend(*inputs, mask)
    assert not output[0].any()
    torch.testing.assert_close(output[1], attend(*inputs)[1])


def test_the_weights_of_a_dead_row_are_zero_and_not_uniform():
    mask = torch.tensor([[True, False], [False, False]])
    x = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
    assert scaled_dot_product_attention(x, x, x, mask)[1].tolist() == [[1.0, 0.0], [0.0, 0.0]]


def test_a_dead_row_in_a_layer_leaves_every_parameter_with_a_finite_gradient():
    torch.manual_seed(0)
    attention = MultiHeadAttention(8, 2)
    x = torch.randn(1, 3, 8)
    mask = torch.tensor([[False] * 3, [True] * 3, [True, False, True]])
    for need_weights in (False, True):
        attention.zero_grad()
        output = attention(x, x, mask, need_weights)[0]
        output.square().sum().backward()
        torch.testing.assert_close(output[0, 0], attention.output.bias)
        assert all(p.grad.isfinite().all() for p in attention.parameters())


@PATHS
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8])
def test_a_mask_that_is_not_boolean_is_an_error_that_names_its_type(attend, dtype):
    with pytest.raises(ValueError, match=str(dtype)):
        attend(*random_inputs(), torch.ones(5, 7, dtype=dtype))


@PATHS
@pytest.mark.parametrize("shape", [(5, 7), (1, 7), (2, 1, 1, 7), (2, 1, 5, 7), (2, 3, 5, 7)])
def test_masks_broadcast_over_batch_heads_and_queries(attend, shape):
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(2)) < 0.7
    mask[..., 0] = True
    whole = mask.expand(2, 3, 5, 7)
    torch.testing.assert_close(attend(*random_inputs(), mask), attend(*random_inputs(), whole))


@PATHS
def test_keys_in_another_order_give_the_same_output(attend):
    query, key, value = random_inputs(torch.float64)
    order = torch.tensor([3, 0, 6, 1, 5, 2, 4])
    shuffled = attend(query, key[..., order, :], value[..., order, :])
    torch.testing.assert_close(shuffled, attend(query, key, value))


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_equals_nn_multihead_attention_holding_the_same_weights(need_weights, masked):
    ours, theirs = same_weights(16, 4)
    x, y = torch.randn(2, 5, 16), torch.randn(2, 7, 16)
    mask = random_mask() if masked else None
    # torch's mask is inverted, and repeated for each head.
    inverted = None if mask is None else ~mask.expand(2, 4, 5, 7).flatten(0, 1)
    results = []
    for run in (
        lambda x, y: ours(x, y, mask, need_weights),
        lambda x, y: theirs(x, y, y, attn_mask=inverted, average_attn_weights=False),
    ):
        inputs = [t.clone().requires_grad_() for t in (x, y)]
        output, weights = run(*inputs)
        output.square().sum().backward()
        results.append([output, weights, *(t.grad for t in inputs)])
    for name, a, b in zip(("output", "weights", "query", "memory"), *results, strict=True):
        if name == "weights" and not need_weights:
            assert a is None
        else:
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: n + m)
    torch.testing.assert_close(ours.output.weight.grad, theirs.out_proj.weight.grad)
    gradient = torch.cat([ours.query.weight.grad, ours.key.weight.grad, ours.value.weight.grad])
    torch.testing.assert_close(gradient, theirs.in_proj_weight.grad, rtol=1e-4, atol=1e-5)


def test_bfloat16_layer_stays_close_to_the_same_layer_in_float64():
    ours, _ = same_weights(64, 4)
    x = torch.randn(2, 9, 64).bfloat16()
    rounded = ours.bfloat16()(x, x)[0].double()
    exact = ours.double()(x.double(), x.double())[0]
    assert (rounded - exact).norm() < 0.02 * exact.norm()


def test_d_k_and_d_v_may_differ_from_each_other_and_from_d_model_over_heads():
    torch.manual_seed(0)
    attention = MultiHeadAttention(12, 5, d_k=3, d_v=7)
    x = torch.randn(2, 4, 12)
    output, weights = attention(x, x, need_weights=True)
    assert output.shape == (2, 4, 12) and weights.shape == (2, 5, 4, 4)
    assert attention.query.weight.shape == (15, 12) and attention.value.weight.shape == (35, 12)
    torch.testing.assert_close(attention(x, x)[0], output)


def test_sizes_of_the_base_model_and_its_parameters():
    assert sum(p.numel() for p in MultiHeadAttention(512, 8).parameters()) == 4 * (512 * 512 + 512)
    without = MultiHeadAttention(512, 8, d_k=16, bias=False)
    assert sum(p.numel() for p in without.parameters()) == 2 * 512 * 128 + 2 * 512 * 512


@pytest.mark.parametrize("heads", [3, 5, 7])
def test_heads_that_do_not_divide_d_model_are_an_error_that_names_both(heads):
    with pytest.raises(ValueError, match=f"heads {heads} do not divide d_model 16"):
        MultiHeadAttention(16, heads)
    with pytest.raises(ValueError, match="16"):
        MultiHeadAttention(16, heads, d_k=4)


@pytest.mark.parametrize("sizes", [{"heads": 0}, {"heads": 2, "d_k": 0}, {"heads": 2, "d_v": -1}])
def test_sizes_below_one_are_an_error(sizes):
    with pytest.raises(ValueError, match="at least 1"):
        MultiHeadAttention(16, **sizes)


def test_every_head_reads_every_coordinate_of_the_input():
    torch.manual_seed(0)
    attention = MultiHeadAttention(16, 4)
    x = torch.randn(1, 3, 16, requires_grad=True)
    for head in attention.split(attention.query(x))[0]:
        (gradient,) = torch.autograd.grad(head.sum(), x, retain_graph=True)
        assert gradient[0, 0].all()


def test_no_dropout_is_exact_determinism_in_training():
    torch.manual_seed(0)
    attention = MultiHeadAttention(8, 2, dropout=0.0).train()
    x = torch.randn(1, 4, 8)
    assert torch.equal(attention(x, x)[0], attention(x, x)[0])


@pytest.mark.parametrize("need_weights", [False, True])
def test_dropout_acts_on_the_weights_in_training_only(need_weights):
    torch.manual_seed(0)
    attention = MultiHeadAttention(8, 2, dropout=0.5)
    x = torch.randn(1, 6, 8).expand(4000, 6, 8)  # the same sentence, dropped out in 4,000 ways
    with torch.no_grad():
        expected, weights = attention.eval()(x, x, need_weights=need_weights)
        assert torch.equal(attention(x, x, need_weights=need_weights)[0], expected)
        outputs, dropped = attention.train()(x, x, need_weights=need_weights)
    assert outputs.std(0).min() > 0.01
    torch.testing.assert_close(outputs.mean(0), expected[0], rtol=0, atol=0.03)
    if need_weights:  # the weights returned are those before dropout
        assert torch.equal(dropped, weights)


def test_self_attention_with_a_cache_equals_all_at_once():
    torch.manual_seed(0)
    attention = MultiHeadAttention(16, 4)
    x = torch.randn(2, 6, 16)
    causal = torch.ones(6, 6, dtype=torch.bool).tril()
    whole = attention(x, x, causal)[0]
    cache, parts, past = KeyValueCache(), [], 0
    for chunk in x.split([1, 2, 1, 2], dim=1):
        mask = causal[past : past + chunk.size(1), : past + chunk.size(1)]
        parts.append(attention(chunk, chunk, mask, cache=cache)[0])
        past += chunk.size(1)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=0, atol=1e-6)
    assert cache.key.shape == (2, 4, 6, 4)


def test_cross_attention_with_a_cache_projects_its_memory_once():
    torch.manual_seed(0)
    attention = MultiHeadAttention(16, 4)
    calls = []
    attention.key.register_forward_hook(lambda *_: calls.append(1))
    x, memory = torch.randn(2, 3, 16), torch.randn(2, 5, 16)
    whole = attention(x, memory)[0]
    cache = KeyValueCache()
    parts = [attention(token, memory, cache=cache)[0] for token in x.split(1, dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=0, atol=1e-6)
    assert cache.key.size(2) == 5 and len(calls) == 2


def test_a_cache_is_reordered_with_its_rows():
    torch.manual_seed(0)
    attention = MultiHeadAttention(16, 4)
    x = torch.randn(3, 4, 16)
    rows = torch.tensor([2, 0, 2])
    cache = KeyValueCache()
    attention(x[:, :3], x[:, :3], cache=cache)
    cache.select(rows)
    last = x[rows, 3:]
    stepped = attention(last, last, cache=cache)[0]
    whole = attention(last, x[rows])[0]
    torch.testing.assert_close(stepped, whole, rtol=0, atol=1e-6)


def test_selecting_rows_of_an_empty_cache_does_nothing():
    cache = KeyValueCache()
    cache.select(torch.tensor([0]))
    assert cache.key is None and cache.value is None


def test_attention_plots_have_queries_as_rows_and_keys_as_columns():
    figure = pytest.importorskip("matplotlib.figure").Figure()
    axis = figure.add_subplot()
    weights = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.25, 0.75]])  # 2 queries, 3 keys
    image = draw_attention(axis, weights, queries=["a", "b"], keys=["x", "y", "z"])
    assert image.get_array().tolist() == weights.tolist()
    assert axis.get_xlabel() == "keys" and axis.get_ylabel() == "queries"
    assert [t.get_text() for t in axis.get_yticklabels()] == ["a", "b"]
    assert [t.get_text() for t in axis.get_xticklabels()] == ["x", "y", "z"]
    # Where the picture shows key z of query b: to the right, and below, since row 0 is on top.
    left, right, bottom, top = image.get_extent()
    assert (left, right, bottom, top) == (-0.5, 2.5, 1.5, -0.5)


def test_attention_plots_refuse_labels_that_do_not_fit():
    axis = pytest.importorskip("matplotlib.figure").Figure().add_subplot()
    with pytest.raises(ValueError, match=r"2 labels .*\(2, 3\)"):
        draw_attention(axis, torch.zeros(2, 3), keys=["x", "y"])


@PATHS
@pytest.mark.parametrize("shape", [(), (7,), (5, 7)])
def test_a_mask_broadcasts_from_any_shape_on_both_paths(attend, shape):
    query, key, value = random_inputs()
    mask = torch.ones(shape, dtype=torch.bool)
    if shape:
        mask[..., -1] = False
    full = mask.expand(2, 3, 5, 7)
    expected = explicit_attention(query, key, value, full)
    torch.testing.assert_close(attend(query, key, value, mask), expected)
