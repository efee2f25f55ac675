"""The assembled model: configuration, presets, initialisation, masks made inside, the cache."""

import copy
import math
from dataclasses import FrozenInstanceError, asdict

import pytest
import torch

from transformer.encoding import KINDS
from transformer.model import (
    PRESETS,
    Transformer,
    TransformerConfig,
    count_parameters,
    initialise,
)
from transformer.results import paper_tables

TINY = {"vocab_size": 50, "layers": 2, "d_model": 32, "d_ff": 64, "heads": 4}


def build(seed=0, **changes):
    config = TransformerConfig(**{**TINY, **changes})
    return Transformer(config, torch.Generator().manual_seed(seed)).eval()


def tokens(rows, length, seed=0, low=3):
    return torch.randint(low, 50, (rows, length), generator=torch.Generator().manual_seed(seed))


def on_meta(name, **changes):
    with torch.device("meta"):
        return Transformer(TransformerConfig.preset(name, **changes))


ROWS = list(zip(paper_tables()["table3"]["rows"], PRESETS, strict=False))


@pytest.mark.parametrize(("row", "name"), ROWS, ids=[name for _, name in ROWS])
def test_presets_are_the_rows_of_table_3(row, name):
    config, paper = TransformerConfig.preset(name), row["full_config"]
    ours = [config.layers, config.d_model, config.d_ff, config.heads, config.d_k, config.d_v]
    assert ours == [paper[key] for key in ("N", "d_model", "d_ff", "h", "d_k", "d_v")]
    assert config.dropout == paper["P_drop"]
    assert config.positions == ("learned" if row["group"] == "E" else "sinusoidal")


@pytest.mark.parametrize(("row", "name"), ROWS, ids=[name for _, name in ROWS])
def test_parameter_counts_are_those_derived_for_tensor2tensor_and_the_paper(row, name):
    # A learned table adds numbers of its own, which the derived figures leave out.
    changes = {"target_space": 32, "positions": "sinusoidal"}
    wide, narrow = (on_meta(name, vocab_size=v, **changes) for v in (40960, 37000))
    assert count_parameters(wide) == row["params_derived_V40960_T2T_v1.0.3_layout"]
    assert count_parameters(narrow) == row["params_derived_V37000"]


def test_the_parsing_preset_has_the_papers_layers_and_width():
    config = TransformerConfig.preset("parsing")
    assert (config.layers, config.d_model, config.vocab_size) == (4, 1024, 16000)


def test_a_preset_takes_changes_and_an_unknown_one_lists_the_names():
    config = TransformerConfig.preset("base", vocab_size=123, heads=16)
    assert (config.vocab_size, config.d_k, config.d_v) == (123, 32, 32)
    with pytest.raises(ValueError, match="no preset 'huge'; there are: base,"):
        TransformerConfig.preset("huge")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 5}, "heads 5 do not divide d_model 32"),
        ({"d_model": 33, "heads": 3}, "even .* not 33"),
        ({"layers": 0}, "layers must be at least 1, not 0"),
        ({"heads": 0}, "heads must be at least 1, not 0"),
        ({"heads": -4}, "heads must be at least 1, not -4"),
        ({"d_k": 0}, "d_k must be at least 1, not 0"),
        ({"vocab_size": 0}, "vocab_size must be at least 1, not 0"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\), not 1.0"),
        ({"dropout": -0.1}, "dropout must be"),
        ({"attention_dropout": 2}, "attention_dropout must be"),
        ({"pad_id": 50}, "pad_id 50 is outside the vocabulary of 50"),
        ({"bos_id": -1}, "bos_id -1 is outside"),
        ({"eos_id": 1}, "must differ"),
        ({"norm": "both"}, "norm is one of"),
        ({"positions": "rotary"}, "positions is one of"),
        ({"target_space": -1}, "target_space must be at least 0"),
    ],
)
def test_impossible_shapes_are_refused_by_name_and_value(changes, message):
    with pytest.raises(ValueError, match=message):
        TransformerConfig(**{**TINY, **changes})


def test_a_configuration_is_frozen_and_survives_json():
    config = TransformerConfig(**TINY)
    with pytest.raises(FrozenInstanceError):
        config.layers = 3
    assert TransformerConfig(**asdict(config)) == config


def test_odd_width_is_fine_with_learned_positions():
    model = build(d_model=33, heads=3, positions="learned", max_length=9)
    assert model(tokens(1, 4), tokens(1, 5)).shape == (1, 5, 50)


def test_the_same_generator_gives_the_same_weights_whatever_torchs_own_stream():
    one = build(seed=3)
    torch.manual_seed(99)
    two = build(seed=3)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    torch.manual_seed(5)
    three = Transformer(TransformerConfig(**TINY))
    torch.manual_seed(5)
    four = Transformer(TransformerConfig(**TINY))
    assert torch.equal(three.generator.table.weight, four.generator.table.weight)


def test_initialisation_is_glorot_over_the_matrices_that_were_one():
    model = Transformer(TransformerConfig(d_model=256, layers=1, heads=4, vocab_size=3000))
    d = 256
    own, cross = model.decoder.layers[0].self_attention, model.decoder.layers[0].cross_attention
    limits = {
        own.query: math.sqrt(6 / (4 * d)),
        own.value: math.sqrt(6 / (4 * d)),
        cross.query: math.sqrt(6 / (2 * d)),
        cross.key: math.sqrt(6 / (3 * d)),
        own.output: math.sqrt(6 / (2 * d)),
        model.encoder.layers[0].feed_forward.inner: math.sqrt(6 / (d + 2048)),
    }
    for linear, limit in limits.items():
        assert linear.weight.abs().max() <= limit
        assert linear.weight.std().item() == pytest.approx(limit / math.sqrt(3), rel=0.02)
        assert not linear.bias.any()
    assert model.generator.table.weight.std().item() == pytest.approx(d**-0.5, rel=0.02)


def test_initialise_draws_anew():
    model = build()
    before = copy.deepcopy(model.state_dict())
    initialise(model, torch.Generator().manual_seed(1))
    changed = [name for name, p in model.named_parameters() if not torch.equal(p, before[name])]
    assert "encoder.layers.1.self_attention.key.weight" in changed
    initialise(model, torch.Generator().manual_seed(0))
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_the_first_loss_is_the_log_of_the_vocabulary_and_a_half():
    model = build(vocab_size=2000, d_model=256, heads=4, layers=6)
    draw = torch.Generator().manual_seed(1)
    source, target = (torch.randint(3, 2000, (8, 20), generator=draw) for _ in range(2))
    logits = model(source, target).flatten(0, 1)
    random = torch.randint(3, 2000, (160,), generator=draw)
    loss = torch.nn.functional.cross_entropy(logits, random).item()
    assert loss == pytest.approx(math.log(2000) + 0.5, abs=0.2)


def test_tied_is_one_tensor_and_untied_three():
    tied, untied = build(), build(tied=False)
    places = ("source_embeddings", "target_embeddings", "generator")
    pointers = [{getattr(m, n).table.weight.data_ptr() for n in places} for m in (tied, untied)]
    assert [len(p) for p in pointers] == [1, 3]
    assert count_parameters(untied) - count_parameters(tied) == 2 * 50 * 32
    tied(tokens(1, 3), tokens(1, 3)).sum().backward()
    assert tied.source_embeddings.table.weight.grad is tied.generator.table.weight.grad


def test_departures_of_tensor2tensor_are_options():
    assert all(
        linear.bias is None for linear in build(attention_bias=False).encoder.layers[0]
        .self_attention.children()
    )  # fmt: skip
    plain, spaced = build(), build(target_space=7)
    assert count_parameters(spaced) - count_parameters(plain) == 7 * 32
    assert type(plain.encoder.final_norm).__name__ == "Identity"
    assert type(build(norm="pre").encoder.final_norm).__name__ == "LayerNorm"


@pytest.mark.parametrize("positions", KINDS)
@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("pad_id", [0, 7])
def test_step_by_step_equals_teacher_forcing(norm, positions, pad_id):
    ids = {"pad_id": pad_id, "bos_id": 1, "eos_id": 2}
    model = build(norm=norm, positions=positions, **ids)
    source, target = tokens(3, 6, low=8), tokens(3, 9, seed=1, low=8)
    source[0, 3:] = pad_id
    with torch.no_grad():
        full = model(source, target)
        memory, cache = model.encode(source), model.new_cache()
        pieces = [(0, 4), (4, 5), (5, 9)]  # several tokens at a time, too
        steps = [model.decode(target[:, a:b], memory, source, cache=cache) for a, b in pieces]
    assert cache.length == 9
    torch.testing.assert_close(torch.cat(steps, 1), full, atol=1e-5, rtol=0)


def test_selected_rows_of_a_cache_go_on_alone():
    model = build()
    source, target = tokens(4, 5), tokens(4, 6, seed=1)
    source[2, 3:] = 0
    keep = torch.tensor([2, 0, 2])
    with torch.no_grad():
        full = model(source, target)[keep]
        memory, cache = model.encode(source), model.new_cache()
        model.decode(target[:, :5], memory, source, cache=cache)
        cache.select(keep)
        last = model.decode(target[keep, 5:], memory[keep], source[keep], cache=cache)
    torch.testing.assert_close(last, full[:, 5:], atol=1e-5, rtol=0)


def test_padding_in_source_and_target_is_masked_inside():
    model = build(pad_id=9)
    source, target = tokens(2, 5, low=10), tokens(2, 4, seed=1, low=10)
    pads = torch.full((2, 3), 9)
    with torch.no_grad():
        plain = model(source, target)
        padded = model(torch.cat([source, pads], 1), torch.cat([target, pads], 1))
    torch.testing.assert_close(padded[:, :4], plain, atol=1e-5, rtol=0)


def test_rows_of_nothing_but_padding_stay_finite_in_value_and_gradient():
    model = build()
    source, target = tokens(2, 5), tokens(2, 4, seed=1)
    source[1], target[1] = 0, 0
    logits = model(source, target)
    logits.sum().backward()
    assert logits.isfinite().all()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_deep_copies_and_moves_keep_the_tie():
    twin = copy.deepcopy(build()).double()
    assert twin.generator.table.weight is twin.source_embeddings.table.weight
    assert twin(tokens(1, 3), tokens(1, 3)).dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_models_give_finite_logits_near_fp32(dtype):
    model = build()
    source, target = tokens(2, 5), tokens(2, 4, seed=1)
    source[0, 2:] = 0
    with torch.no_grad():
        full = model(source, target)
        half = copy.deepcopy(model).to(dtype)(source, target)
    assert half.dtype == dtype and half.isfinite().all()
    assert (half.float() - full).abs().max() < 0.1


def test_batches_of_different_sizes_are_refused_and_not_broadcast():
    with pytest.raises(ValueError, match="target 2, memory 1, source 1"):
        build()(tokens(1, 4), tokens(2, 4))


def test_a_failed_decode_leaves_the_cache_as_it_was():
    model, source = build(), tokens(1, 4)
    memory, cache = model.encode(source), model.new_cache()
    model.decode(tokens(1, 2), memory, source, cache=cache)
    with pytest.raises(IndexError):
        model.decode(torch.tensor([[50]]), memory, source, cache=cache)
    assert cache.length == 2
    assert model.decode(tokens(1, 1), memory, source, cache=cache).shape == (1, 1, 50)


def test_a_model_used_on_the_meta_device_can_be_given_memory():
    with torch.device("meta"):
        model = Transformer(TransformerConfig(**TINY))
        model(torch.ones(1, 3, dtype=torch.long), torch.ones(1, 3, dtype=torch.long))
    model = model.to_empty(device="cpu")
    initialise(model, torch.Generator().manual_seed(0))
    assert model.positions(torch.zeros(1, 3, 32)).isfinite().all()


@pytest.mark.parametrize("changes", [{"heads": "4"}, {"d_model": 32.0}, {"layers": True}])
def test_a_field_of_another_type_is_named(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        TransformerConfig(**{**TINY, **changes})
