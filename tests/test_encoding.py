"""Positional encoding (chapter 3.5)."""

import copy
import math

import pytest
import torch

from transformer.encoding import (
    KINDS,
    PositionalEncoding,
    concatenated_encoding,
    sinusoidal_encoding,
)

SINUSOIDS = (sinusoidal_encoding, concatenated_encoding)


def frequencies(d_model: int) -> torch.Tensor:
    return 10000 ** (-torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)


def test_values_are_those_of_the_papers_formula():
    # d_model 4: angles pos and pos / 100
    expected = [
        [0.0, 1.0, 0.0, 1.0],
        [0.841471, 0.540302, 0.010000, 0.999950],
        [0.909297, -0.416147, 0.019999, 0.999800],
    ]
    torch.testing.assert_close(sinusoidal_encoding(3, 4), torch.tensor(expected), atol=1e-6, rtol=0)


def test_values_of_tensor2tensors_variant():
    # d_model 4: sines then cosines, angles pos and pos / 10000
    expected = [[0.0, 0.0, 1.0, 1.0], [0.841471, 0.000100, 0.540302, 1.000000]]
    torch.testing.assert_close(
        concatenated_encoding(2, 4), torch.tensor(expected), atol=1e-6, rtol=0
    )


def test_every_entry_agrees_with_a_scalar_loop():
    table = sinusoidal_encoding(30, 6)
    for position in range(30):
        for i in range(3):
            angle = position / 10000 ** (2 * i / 6)
            assert table[position, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[position, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)


@pytest.mark.parametrize("encode", SINUSOIDS)
@pytest.mark.parametrize(("length", "d_model"), [(0, 4), (1, 2), (7, 512), (2000, 6)])
def test_shape_is_length_by_width_in_fp32(encode, length, d_model):
    table = encode(length, d_model)
    assert table.shape == (length, d_model) and table.dtype == torch.float32
    assert table.isfinite().all()


@pytest.mark.parametrize("encode", SINUSOIDS)
@pytest.mark.parametrize("d_model", [63, 1, 0, -2])
def test_an_odd_or_empty_width_is_an_error_that_names_it(encode, d_model):
    with pytest.raises(ValueError, match=f"must be even, not {d_model}"):
        encode(10, d_model)


@pytest.mark.parametrize("encode", SINUSOIDS)
def test_a_negative_length_is_an_error_that_names_it(encode):
    with pytest.raises(ValueError, match="-1"):
        encode(-1, 4)


def test_longest_wavelength_is_a_limit_in_the_paper_and_exact_in_tensor2tensor():
    turn = round(10000 * 2 * math.pi)  # positions of one full turn of the slowest pair
    assert concatenated_encoding(turn + 1, 4)[turn, 1].item() == pytest.approx(0, abs=1e-4)
    slowest = 2 * math.pi * 10000 ** (1 - 2 / 4)
    assert sinusoidal_encoding(629, 4)[628, 2].item() == pytest.approx(
        math.sin(2 * math.pi * 628 / slowest), abs=1e-6
    )


@pytest.mark.parametrize("encode", SINUSOIDS)
def test_large_positions_are_as_exact_as_small_ones(encode):
    d_model, last = 64, 20000
    exponents = torch.arange(0, d_model, 2, dtype=torch.float64) / d_model
    if encode is concatenated_encoding:
        exponents = torch.arange(d_model // 2, dtype=torch.float64) / (d_model // 2 - 1)
    sines = (last / 10000**exponents).sin()
    row = encode(last + 1, d_model)[last].double()
    got = row[0::2] if encode is sinusoidal_encoding else row[: d_model // 2]
    assert (got - sines).abs().max() < 1e-7


def test_no_two_of_20000_positions_are_closer_than_neighbours():
    offsets = torch.arange(1, 20000, dtype=torch.float64)[:, None]
    distances = (2 - 2 * (offsets * frequencies(512)).cos()).sum(dim=1).sqrt()
    assert distances.argmin() == 0
    assert distances[0].item() == pytest.approx(3.7143, abs=1e-4)
    table = sinusoidal_encoding(20000, 512)
    torch.testing.assert_close(
        (table[1:] - table[0]).norm(dim=1), distances.float(), atol=1e-4, rtol=0
    )


@pytest.mark.parametrize("k", [1, 5, 64, -3])
def test_a_shift_is_a_rotation_that_does_not_depend_on_the_position(k):
    d_model = 32
    c, s = (frequencies(d_model) * k).cos(), (frequencies(d_model) * k).sin()
    blocks = torch.stack([torch.stack([c, s], -1), torch.stack([-s, c], -1)], -2)
    rotation = torch.block_diag(*blocks).float()
    table = sinusoidal_encoding(400, d_model)
    torch.testing.assert_close(
        table[10:300] @ rotation.T, table[10 + k : 300 + k], atol=1e-5, rtol=0
    )


def test_dot_products_depend_on_the_offset_alone():
    table = sinusoidal_encoding(500, 128)
    for k in (0, 1, 17, 99):
        dots = (table[: 500 - k] * table[k:]).sum(dim=1)
        assert (dots - (frequencies(128) * k).cos().sum()).abs().max() < 1e-4


@pytest.mark.parametrize("kind", ["sinusoidal", "concatenated"])
def test_a_table_that_is_too_short_grows_and_keeps_its_values(kind):
    positions = PositionalEncoding(16, kind, max_length=4)
    short = positions(torch.zeros(1, 4, 16))
    long = positions(torch.zeros(2, 300, 16))
    make = sinusoidal_encoding if kind == "sinusoidal" else concatenated_encoding
    assert torch.equal(long[1], make(300, 16))
    assert torch.equal(long[0, :4], short[0])


def test_a_learned_table_names_both_lengths_when_it_is_too_short():
    positions = PositionalEncoding(16, "learned", max_length=8)
    assert positions(torch.zeros(1, 8, 16)).shape == (1, 8, 16)
    with pytest.raises(ValueError, match="9 positions asked for, 8 learned"):
        positions(torch.zeros(1, 9, 16))
    with pytest.raises(ValueError, match="9 positions asked for, 8 learned"):
        positions(torch.zeros(1, 1, 16), start=8)


@pytest.mark.parametrize("kind", KINDS)
def test_start_continues_where_the_cache_ends(kind):
    torch.manual_seed(0)
    positions = PositionalEncoding(16, kind, max_length=40)
    x = torch.randn(2, 40, 16)
    whole = positions(x)
    steps = [positions(x[:, t : t + 1], start=t) for t in range(40)]
    assert torch.equal(torch.cat(steps, dim=1), whole)


def test_learned_positions_are_trained_and_sinusoids_are_not():
    learned = PositionalEncoding(16, "learned", max_length=8)
    learned(torch.zeros(2, 5, 16)).sum().backward()
    assert learned.table.grad[:, 0].tolist() == [2.0] * 5 + [0.0] * 3
    fixed = PositionalEncoding(16)
    assert not list(fixed.parameters()) and not fixed.state_dict()


def test_half_precision_model_keeps_its_table_in_fp32_and_rounds_the_sum_once():
    positions = PositionalEncoding(64, max_length=2000).bfloat16()
    assert positions.table.dtype == torch.float32
    x = torch.randn(1, 2000, 64).bfloat16()
    once = (x.float() + sinusoidal_encoding(2000, 64)).bfloat16()
    output = positions(x)
    assert output.dtype == torch.bfloat16 and torch.equal(output, once)


def test_positions_stay_distinct_in_bf16():
    table = PositionalEncoding(64).bfloat16()(torch.zeros(1, 4096, 64, dtype=torch.bfloat16))[0]
    assert len(torch.unique(table.float(), dim=0)) == 4096
    # What would happen if the position itself were rounded:
    assert len(torch.arange(4096).bfloat16().unique()) == 769


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_precision_is_that_of_the_input(dtype):
    assert PositionalEncoding(16)(torch.zeros(1, 3, 16, dtype=dtype)).dtype == dtype


def test_values_do_not_depend_on_torchs_default_precision():
    before = sinusoidal_encoding(100, 32)
    try:
        torch.set_default_dtype(torch.bfloat16)
        assert torch.equal(sinusoidal_encoding(100, 32), before)
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_model_built_on_the_meta_device_can_still_compute_positions():
    with torch.device("meta"):
        positions = PositionalEncoding(16, max_length=4)
    assert torch.equal(positions(torch.zeros(1, 9, 16))[0], sinusoidal_encoding(9, 16))


def test_a_copy_grows_on_its_own():
    positions = PositionalEncoding(16, max_length=4)
    other = copy.deepcopy(positions)
    other(torch.zeros(1, 50, 16))
    assert positions.table.size(0) == 4 and other.table.size(0) >= 50


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((16, "rotary"), "not 'rotary'"),
        ((15,), "not 15"),
        ((16, "learned", 0), "max_length must be at least 1, not 0"),
        ((16, "sinusoidal", -1), "max_length must be at least 1, not -1"),
    ],
)
def test_what_cannot_be_built_is_an_error_that_names_it(arguments, named):
    with pytest.raises(ValueError, match=named):
        PositionalEncoding(*arguments)


def test_learned_positions_may_have_an_odd_width():
    assert PositionalEncoding(15, "learned", 4)(torch.zeros(1, 4, 15)).shape == (1, 4, 15)
