"""What goes wrong in Transformer code, and is right here: the rows that concern the model.

Each test is named after the behaviour. `test_mutations.py` plants the faults and looks whether
these tests turn red.
"""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from conformance.reference import build, tokens
from torch import nn

from transformer.attention import (
    MultiHeadAttention,
    fused_attention,
    scaled_dot_product_attention,
)
from transformer.encoding import PositionalEncoding, sinusoidal_encoding
from transformer.masks import causal_mask, padding_mask
from transformer.model import TransformerConfig, count_parameters

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
MODES = pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])


def explicit_attention(query, key, value, mask=None):
    return scaled_dot_product_attention(query, key, value, mask)[0]


PATHS = pytest.mark.parametrize("attend", [explicit_attention, fused_attention])


def qkv(dtype=torch.float32, length=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    drawn = (torch.randn(2, 3, length, 8, generator=generator) for _ in range(3))
    return [x.to(dtype).requires_grad_() for x in drawn]


def assert_same(x, y, atol=1e-5):
    torch.testing.assert_close(x, y, atol=atol, rtol=1e-5)


# Post-norm, pre-norm, and the norm at the end


def test_default_is_post_norm_without_a_final_norm():
    model = build()
    assert model.config.norm == "post"
    for stack in (model.encoder, model.decoder):
        norms = [m for m in stack.modules() if isinstance(m, nn.LayerNorm)]
        assert len(norms) == sum(len(layer.sub_layers) for layer in stack.layers)
    # What leaves the encoder is what its last LayerNorm gave: undo gain and bias to see it.
    last = model.encoder.layers[-1].sub_layers[-1].layer_norm
    memory = (model.encode(tokens(2, 6)) - last.bias) / last.weight
    assert_same(memory.mean(dim=-1), torch.zeros(2, 6))
    assert_same(memory.var(dim=-1, unbiased=False), torch.ones(2, 6), atol=1e-3)


def test_post_norm_normalises_the_sum_and_pre_norm_the_input():
    x = torch.randn(2, 6, 32, generator=torch.Generator().manual_seed(0))
    for norm in ("post", "pre"):
        sub_layer = build(norm=norm).encoder.layers[0].sub_layers[0]
        f = torch.tanh
        ln = sub_layer.layer_norm
        expected = ln(x + f(x)) if norm == "post" else x + f(ln(x))
        assert_same(sub_layer(x, f), expected)


def test_pre_norm_is_an_option_with_a_final_norm():
    model = build(norm="pre")
    for stack in (model.encoder, model.decoder):
        assert isinstance(stack.final_norm, nn.LayerNorm)
    memory = (model.encode(tokens(2, 6)) - model.encoder.final_norm.bias)
    memory = memory / model.encoder.final_norm.weight
    assert_same(memory.mean(dim=-1), torch.zeros(2, 6))


# Rows in which every key is masked


@PATHS
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_without_keys_gives_zeros_and_finite_gradients(attend, dtype):
    query, key, value = qkv(dtype)
    mask = causal_mask(5).clone()
    mask[2] = False
    output = attend(query, key, value, mask)
    assert (output[:, :, 2] == 0).all() and output.isfinite().all()
    output.float().pow(2).sum().backward()
    for x in (query, key, value):
        assert x.grad.isfinite().all()
    assert (query.grad[:, :, 2] == 0).all()
    # Its keys and values are none the worse for it: the other rows are as without it.
    whole = attend(query, key, value, causal_mask(5))
    others = [0, 1, 3, 4]
    torch.testing.assert_close(output[:, :, others], whole[:, :, others], atol=1e-2, rtol=1e-2)


@PATHS
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_a_row_without_keys_makes_no_nan_on_the_way(attend):
    """A NaN that is overwritten later still stops anyone who looks for NaNs."""
    mask = causal_mask(5).clone()
    mask[2] = False
    with torch.autograd.detect_anomaly(check_nan=True):
        attend(*qkv(), mask).pow(2).sum().backward()


@MODES
def test_a_sentence_of_pads_alone_leaves_the_batch_finite_and_unchanged(training):
    model = build().train(training)
    source, target = tokens(2, 6), tokens(2, 5, seed=1)
    source[1] = 0
    logits = model(source, target)
    assert logits.isfinite().all()
    assert_same(logits[:1], model(source[:1], target[:1]))
    logits.pow(2).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all(), name


# Padding: keys only, any id


@pytest.mark.parametrize("pad_id", [0, 3, 39])
def test_pads_are_hidden_as_keys_whatever_their_id(pad_id):
    special = [i for i in range(4) if i != pad_id][:2]
    model = build(pad_id=pad_id, bos_id=special[0], eos_id=special[1])
    source = tokens(2, 6, avoid=(pad_id,))
    target = tokens(2, 5, seed=1, avoid=(pad_id,))
    source[:, 2] = 0 if pad_id else 5  # id 0 is a word like any other here
    short = model(source, target)
    pads = torch.full((2, 3), pad_id)
    long = model(torch.cat([source, pads], dim=1), torch.cat([target, pads], dim=1))
    assert_same(long[:, :5], short)


def test_pads_are_not_hidden_as_queries():
    mask = padding_mask(torch.tensor([[7, 8, 0]]), pad_id=0)
    assert mask.shape == (1, 1, 1, 3) and mask.flatten().tolist() == [True, True, False]
    # A pad's own output is computed from the words, and is not a dead row of zeros.
    model = build()
    attention = model.encoder.layers[0].self_attention
    x = torch.randn(1, 3, 32, generator=torch.Generator().manual_seed(0))
    _, weights = attention(x, x, mask, need_weights=True)
    assert_same(weights.sum(dim=-1), torch.ones(1, 4, 3))
    assert (weights[..., 2] == 0).all()


def test_the_pads_embedding_never_reaches_a_word():
    model = build()
    source, target = tokens(2, 6), tokens(2, 5, seed=1)
    source[1, 4:], target[1, 3:] = 0, 0
    before = model(source, target)
    with torch.no_grad():
        model.source_embeddings.table.weight[0] += 10
    after = model(source, target)
    words = target != 0
    assert_same(after[words][:, 1:], before[words][:, 1:])  # column 0 is the pad's own logit


# The convention of masks


@PATHS
def test_true_means_may_attend(attend):
    query, key, value = qkv()
    mask = torch.zeros(5, 5, dtype=torch.bool)
    mask[:, 3] = True
    expected = value[:, :, 3:4].expand(-1, -1, 5, -1)
    assert_same(attend(query, key, value, mask), expected)


@PATHS
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8], ids=str)
def test_a_mask_that_is_not_boolean_is_refused(attend, dtype):
    with pytest.raises(ValueError, match=str(dtype)):
        attend(*qkv(), torch.ones(5, 5, dtype=dtype))


# Causality


@MODES
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_future_token_never_changes_an_earlier_output(norm, training):
    model = build(norm=norm).train(training)
    source, target = tokens(3, 6), tokens(3, 7, seed=1)
    logits = model(source, target)
    for t in range(1, 7):
        changed = target.clone()
        changed[:, t:] = tokens(3, 7 - t, seed=50 + t)
        assert_same(model(source, changed)[:, :t], logits[:, :t])
    changed = target.clone()
    changed[:, 0] = 42 - target[:, 0]  # another word; and a past one does change the later ones
    assert not torch.allclose(model(source, changed)[:, 1:], logits[:, 1:], atol=1e-3)


@MODES
def test_no_gradient_flows_from_an_output_to_a_later_input(training):
    model = build().train(training)
    source, target = tokens(2, 6), tokens(2, 7, seed=1)
    memory = model.encode(source).detach()
    inputs = model.target_embeddings(target).detach().requires_grad_()
    model.target_embeddings.register_forward_hook(lambda *_: inputs)
    model.decode(target, memory, source)[:, 3].sum().backward()
    reached = inputs.grad.abs().sum(dim=(0, 2)) > 0
    assert reached.tolist() == [True] * 4 + [False] * 3


# Half precision


@PATHS
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_masks_work_in_every_precision(attend, dtype):
    query, key, value = qkv(dtype)
    masked = attend(query * 2, key * 2, value, causal_mask(5))
    exact = attend(*(x.double() for x in (query * 2, key * 2, value)), causal_mask(5))
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 0.1, torch.float16: 0.02}[dtype]
    assert masked.dtype == dtype
    torch.testing.assert_close(masked.double(), exact, atol=tolerance, rtol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_padded_batch_goes_through_the_model_in_every_precision(dtype):
    model = build()
    source, target = tokens(3, 6), tokens(3, 5, seed=1)
    source[1, 3:], target[1, 2:] = 0, 0
    exact = copy.deepcopy(model).double()(source, target)
    logits = model.to(dtype)(source, target)
    assert logits.dtype == dtype and logits.isfinite().all()
    assert ((logits.double() - exact).norm() / exact.norm()).item() < 0.05


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradients_are_finite_in_every_precision(dtype):
    model = build().to(dtype)
    source, target = tokens(3, 6), tokens(3, 5, seed=1)
    source[1, 3:], target[1, 2:] = 0, 0
    F.cross_entropy(model(source, target).float().flatten(0, 1), target.flatten()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all(), name


# Shapes that cannot be


@pytest.mark.parametrize(
    ("shape", "named"),
    [({"d_model": 33, "heads": 3}, "33"), ({"d_model": 32, "heads": 5}, "5.*32")],
)
def test_an_odd_width_or_heads_that_do_not_divide_it_are_named_at_construction(shape, named):
    with pytest.raises(ValueError, match=named):
        TransformerConfig(vocab_size=40, **shape)


def test_attention_alone_refuses_heads_that_do_not_divide_the_width():
    with pytest.raises(ValueError, match="5.*32"):
        MultiHeadAttention(32, 5)


def test_positions_alone_refuse_an_odd_width():
    with pytest.raises(ValueError, match="33"):
        sinusoidal_encoding(10, 33)
    with pytest.raises(ValueError, match="33"):
        PositionalEncoding(33)


# Positions


def test_positions_are_computed_exactly_and_cast_last():
    length = 4096
    angles = torch.arange(length, dtype=torch.float64)[:, None]
    angles = angles / 10000 ** (torch.arange(0, 64, 2, dtype=torch.float64) / 64)
    exact = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
    assert (sinusoidal_encoding(length, 64) - exact).abs().max() < 1e-6
    half = PositionalEncoding(64).bfloat16()(torch.zeros(1, length, 64, dtype=torch.bfloat16))
    assert torch.equal(half[0], exact.float().bfloat16())


def test_a_sentence_longer_than_the_table_is_computed():
    short, long = build(max_length=8), build(max_length=64)
    source, target = tokens(2, 30), tokens(2, 25, seed=1)
    assert_same(short(source, target), long(source, target))


def test_a_sentence_longer_than_learned_positions_is_an_error_that_names_both_lengths():
    model = build(positions="learned", max_length=8)
    model(tokens(2, 8), tokens(2, 8))
    with pytest.raises(ValueError, match="9.*8"):
        model(tokens(2, 9), tokens(2, 5))
    with pytest.raises(ValueError, match="9.*8"):
        model(tokens(2, 5), tokens(2, 9))


# Decoding step by step


@pytest.mark.parametrize("positions", ["sinusoidal", "concatenated", "learned"])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_step_decoding_equals_teacher_forcing_with_and_without_a_cache(norm, positions):
    model = build(norm=norm, positions=positions)
    source, target = tokens(3, 6), tokens(3, 9, seed=1)
    source[1, 4:] = 0
    forced = model(source, target)
    memory, cache = model.encode(source), model.new_cache()
    for t in range(9):
        uncached = model.decode(target[:, : t + 1], memory, source)[:, -1]
        cached = model.decode(target[:, t : t + 1], memory, source, cache=cache)
        assert cached.shape == (3, 1, 40) and cache.length == t + 1
        assert_same(uncached, forced[:, t])
        assert_same(cached[:, 0], forced[:, t])


def test_a_finished_sentence_may_go_on_with_pads_beside_the_others():
    model = build()
    source, target = tokens(2, 6), tokens(2, 8, seed=1)
    target[0, 4:] = 0
    memory, cache = model.encode(source), model.new_cache()
    steps = [model.decode(target[:, t : t + 1], memory, source, cache=cache) for t in range(8)]
    assert_same(torch.cat(steps, dim=1), model(source, target))


def test_a_cache_is_reordered_with_its_beams():
    model = build()
    source, target = tokens(3, 6), tokens(3, 4, seed=1)
    source[2, 3:] = 0
    memory, cache = model.encode(source), model.new_cache()
    model.decode(target, memory, source, cache=cache)
    rows = torch.tensor([2, 0, 0, 1, 2])  # beams are dropped, moved and copied
    cache.select(rows)
    new = tokens(5, 1, seed=2)
    cached = model.decode(new, memory[rows], source[rows], cache=cache)
    whole = torch.cat([target[rows], new], dim=1)
    assert_same(cached[:, 0], model(source[rows], whole)[:, -1])


def test_decoding_gives_the_logits_of_training():
    model = build()
    source, target = tokens(2, 6), tokens(2, 5, seed=1)
    in_training = model.train()(source, target)
    assert_same(model.eval()(source, target), in_training)
    assert_same(model.decode(target, model.encode(source), source), in_training)
    with torch.no_grad():
        assert_same(model(source, target), in_training)


def test_the_factor_of_the_embeddings_is_not_on_the_logits():
    model = build()
    x = torch.randn(1, 4, 32, generator=torch.Generator().manual_seed(0))
    matrix = model.generator.table.weight
    assert_same(model.generator.logits(x), x @ matrix.T)
    assert_same(model.target_embeddings(torch.tensor([[7]]))[0, 0], matrix[7] * math.sqrt(32))


# Dropout


def test_no_dropout_is_exact_determinism_in_training():
    model = build(dropout=0.0, attention_dropout=0.0).train()
    source, target = tokens(3, 6), tokens(3, 5, seed=1)
    before = torch.get_rng_state()
    first = model(source, target)
    assert torch.equal(first, model(source, target))
    assert torch.equal(torch.get_rng_state(), before), "a random number was drawn"
    assert_same(model.eval()(source, target), first, atol=1e-6)


@pytest.mark.parametrize("which", ["dropout", "attention_dropout"])
def test_dropout_acts_in_training_alone(which):
    model = build(**{which: 0.5})
    source, target = tokens(3, 6), tokens(3, 5, seed=1)
    assert torch.equal(model(source, target), model(source, target))
    assert_same(model(source, target), build()(source, target))
    model.train()
    assert not torch.allclose(model(source, target), model(source, target), atol=1e-3)


def test_dropout_falls_on_sub_layers_and_on_the_sum_of_embedding_and_position():
    model = build(dropout=0.3)
    places = [m for m in model.modules() if isinstance(m, nn.Dropout)]
    assert len(places) == 1 + 2 * 2 + 2 * 3 and {m.p for m in places} == {0.3}
    model.train()
    dropped = []
    model.encoder.register_forward_pre_hook(lambda _, inputs: dropped.append(inputs[0]))
    torch.manual_seed(0)
    model.encode(tokens(20, 20))
    assert (dropped[0] == 0).float().mean().item() == pytest.approx(0.3, abs=0.03)


# Tied weights


def test_tied_weights_are_one_tensor_in_memory_in_the_count_and_after_an_update():
    model = build()
    places = [model.source_embeddings, model.target_embeddings, model.generator]
    assert len({place.table.weight.data_ptr() for place in places}) == 1
    assert sum(parameter.shape == (40, 32) for parameter in model.parameters()) == 1
    assert count_parameters(build(tied=False)) - count_parameters(model) == 2 * 40 * 32
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(tokens(2, 6), tokens(2, 5)).pow(2).sum().backward()
    optimizer.step()
    assert torch.equal(places[0].table.weight, places[2].table.weight)


@pytest.mark.parametrize("change", [copy.deepcopy, lambda m: m.double(), lambda m: m.to("cpu")])
def test_tied_weights_stay_tied(change):
    model = change(build())
    assert model.generator.table.weight is model.source_embeddings.table.weight
    other = build(seed=1)
    other.load_state_dict(model.state_dict())
    assert other.generator.table.weight is other.target_embeddings.table.weight
    source, target = tokens(2, 6), tokens(2, 5, seed=1)
    assert_same(other.double()(source, target), model.double()(source, target))


# The batch


@MODES
def test_a_sentence_gets_the_same_logits_alone_batched_and_shuffled(training):
    model = build().train(training)
    lengths = [(6, 5), (2, 7), (4, 1), (1, 3)]
    source, target = tokens(4, 6), tokens(4, 7, seed=1)
    for row, (s, t) in enumerate(lengths):
        source[row, s:], target[row, t:] = 0, 0
    together = model(source, target)
    order = torch.tensor([2, 0, 3, 1])
    assert_same(model(source[order], target[order]), together[order])
    for row, (s, t) in enumerate(lengths):
        alone = model(source[row : row + 1, :s], target[row : row + 1, :t])
        assert_same(alone[0], together[row, :t])


# Attention plots


def test_weights_have_queries_as_rows_and_keys_as_columns():
    query, key = torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 3, 4)
    query[0, 0, 0, 0] = key[0, 0, 2, 0] = 20.0  # query 0 looks for key 2
    query[0, 0, 1, 1] = key[0, 0, 1, 1] = 20.0  # query 1 looks for key 1
    _, weights = scaled_dot_product_attention(query, key, torch.randn(1, 1, 3, 4))
    assert weights.shape == (1, 1, 2, 3)
    assert_same(weights[0, 0], torch.tensor([[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]]))
    causal = scaled_dot_product_attention(*qkv(), causal_mask(5))[1]
    assert (causal.triu(diagonal=1) == 0).all() and (causal.tril() > 0).any()
