"""Batches: every pair once, within the budget, in few shapes, in an order that can be repeated."""

import hashlib
import os
import random
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer.batches import Batches, by_length, collate, cut_pools

PAD, BOS, EOS = 7, 5, 6  # not the tokenizer's, on purpose


def make_pairs(sizes) -> list:
    """Pairs of the given lengths without EOS, each with ids of its own."""
    return [
        ([100 + number] * source, [100 + number] * target)
        for number, (source, target) in enumerate(sizes)
    ]


def random_sizes(count: int, seed: int = 0, longest: int = 40) -> list:
    generator = random.Random(seed)
    sizes = []
    for _ in range(count):
        source = min(longest, int(generator.expovariate(0.1)) + 1)
        sizes.append((source, max(1, min(longest, source + generator.randint(-4, 6)))))
    return sizes


def batches_of(sizes, max_tokens=200, **options) -> Batches:
    return Batches(make_pairs(sizes), max_tokens, PAD, BOS, EOS, **options)


def numbers(batch) -> list[int]:
    """Which pairs a batch holds, told from the ids of its rows."""
    both = [batch.source.max(1).values, batch.target_in.max(1).values]
    assert both[0].equal(both[1])
    return (both[0] - 100).tolist()


def equal(a, b) -> bool:
    return all(x.equal(y) for x, y in zip(a[:3], b[:3], strict=True))


corpora = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=120)


# One batch


def test_a_batch_is_the_pairs_shifted_and_padded():
    batch = collate([([10, 11], [20]), ([12], [21, 22, 23])], PAD, BOS, EOS)
    assert batch.source.tolist() == [[10, 11, EOS], [12, EOS, PAD]]
    assert batch.target_in.tolist() == [[BOS, 20, PAD, PAD], [BOS, 21, 22, 23]]
    assert batch.target_out.tolist() == [[20, EOS, PAD, PAD], [21, 22, 23, EOS]]
    assert batch.target_tokens == 6
    assert {tensor.dtype for tensor in batch[:3]} == {torch.int64}


def test_a_batch_can_be_made_wider():
    batch = collate([([10], [20])], PAD, BOS, EOS, source_length=4, target_length=3)
    assert batch.source.tolist() == [[10, EOS, PAD, PAD]]
    assert batch.target_out.tolist() == [[20, EOS, PAD]]


def test_an_empty_side_is_eos_alone():
    batch = collate([([], [])], PAD, BOS, EOS)
    assert (batch.source.tolist(), batch.target_in.tolist()) == ([[EOS]], [[BOS]])


def test_a_batch_moves_to_a_device():
    batch = collate([([10], [20])], PAD, BOS, EOS).to("meta")
    assert {tensor.device.type for tensor in batch[:3]} == {"meta"} and batch.target_tokens == 2


# An epoch


@settings(max_examples=150, deadline=None)
@given(corpora, st.integers(31, 300), st.integers(2, 12), st.integers(1, 5), st.integers(0, 2))
def test_every_pair_once_within_the_budget_and_the_shapes(sizes, budget, max_shapes, mix, epoch):
    batches = batches_of(sizes, budget, seed=epoch, max_shapes=max_shapes, mix=mix)
    made = list(batches.epoch(epoch))
    assert sorted(n for batch in made for n in numbers(batch)) == list(range(len(sizes)))
    assert len(made) == len(batches)
    assert len(batches.shapes) <= max_shapes
    for batch in made:
        assert batch.target_in.shape == batch.target_out.shape
        assert max(batch.source.numel(), batch.target_out.numel()) <= budget
        assert (*batch.source.shape, batch.target_out.size(1)) in batches.shapes
        assert batch.target_tokens == (batch.target_out != PAD).sum()
    positions = sum(batch.source.numel() + batch.target_out.numel() for batch in made)
    text = sum(source + target + 2 for source, target in sizes)
    assert batches.padding == pytest.approx(1 - text / positions)
    assert batches.source_tokens + batches.target_tokens == text


@settings(max_examples=100, deadline=None)
@given(corpora, st.integers(31, 300), st.integers(1, 9))
def test_pools_hold_full_batches_but_for_the_last(sizes, budget, count):
    order = by_length(sizes)
    pools = cut_pools(order, sizes, budget, count)
    assert [n for pool in pools for n in pool.members] == order
    for pool in pools:
        assert pool.source_length == max(sizes[n][0] for n in pool.members)
        assert pool.target_length == max(sizes[n][1] for n in pool.members)
        assert 1 <= pool.rows <= budget // max(pool.source_length, pool.target_length)
    assert all(len(pool.members) == count * pool.rows for pool in pools[:-1])
    assert len(pools[-1].members) <= count * pools[-1].rows


def test_seed_and_epoch_alone_decide_the_order():
    sizes = random_sizes(300)
    first = [numbers(batch) for batch in batches_of(sizes, seed=1).epoch(4)]
    torch.manual_seed(99)
    random.seed(99)
    again = batches_of(sizes, seed=1)
    list(again.epoch(0))
    assert [numbers(batch) for batch in again.epoch(4)] == first
    assert [numbers(batch) for batch in again.epoch(5)] != first
    assert [numbers(batch) for batch in batches_of(sizes, seed=2).epoch(4)] != first


def test_epoch_1_of_seed_0_is_not_epoch_0_of_seed_1():
    sizes = random_sizes(300)
    which = [(0, 1), (1, 0), (1, 11), (11, 1)]
    assert len({str(batches_of(sizes, seed=s).plan(e)) for s, e in which}) == 4


def test_the_order_does_not_depend_on_hash_seed_or_threads():
    code = (
        "import hashlib, torch\nfrom transformer.batches import Batches\n"
        f"pairs = {make_pairs(random_sizes(200))!r}\n"
        f"epoch = Batches(pairs, 200, {PAD}, {BOS}, {EOS}, seed=3).epoch(2)\n"
        "print(hashlib.sha256(str([b.target_in.tolist() for b in epoch]).encode()).hexdigest())"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "12345", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code]
    out = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    epoch = batches_of(random_sizes(200), seed=3).epoch(2)
    here = hashlib.sha256(str([b.target_in.tolist() for b in epoch]).encode()).hexdigest()
    assert out.stdout.strip() == here


def test_an_epoch_resumes_at_any_batch():
    batches = batches_of(random_sizes(200), seed=5)
    whole = list(batches.epoch(3))
    for start in (0, 1, len(whole) // 2, len(whole)):
        rest = list(batches.epoch(3, start))
        assert len(rest) == len(whole) - start
        assert all(map(equal, rest, whole[start:]))


def test_skipped_batches_are_never_built():
    class Counted(list):
        taken = 0

        def __getitem__(self, key):
            Counted.taken += 1
            return super().__getitem__(key)

    batches = batches_of(random_sizes(200))
    batches.pairs = Counted(batches.pairs)
    last = list(batches.epoch(0, start=len(batches) - 1))
    assert len(last) == 1 and Counted.taken == len(last[0].source)


@pytest.mark.parametrize(("mix", "changes"), [(4, True), (1, False)])
def test_company_changes_between_epochs_unless_pools_hold_one_batch(mix, changes):
    batches = batches_of([(9, 9)] * 400, mix=mix)
    company = [{frozenset(numbers(batch)) for batch in batches.epoch(n)} for n in (0, 1)]
    assert (company[0] & company[1] == set()) == changes
    assert (company[0] == company[1]) != changes


# Padding and shapes


def test_neighbours_in_the_walk_have_like_lengths():
    sizes = [(source, target) for source in range(1, 13) for target in range(1, 13)]
    walk = [sizes[n] for n in by_length(sizes)]
    assert sorted(walk) == sizes
    longer = [max(size) for size in walk]
    assert longer == sorted(longer)
    steps = [abs(a[0] - b[0]) + abs(a[1] - b[1]) for a, b in zip(walk, walk[1:], strict=False)]
    assert max(steps) == 1


def test_equal_lengths_need_no_padding():
    batches = batches_of([(9, 9)] * 40)
    assert batches.padding == 0 and batches.shapes == {(20, 10, 10)} and len(batches) == 2


def test_padding_on_lengths_like_those_of_text_is_small():
    sizes = random_sizes(4000)
    batches = batches_of(sizes, 1000)
    assert batches.padding < 0.2 and len(batches.shapes) <= 48
    assert batches_of(sizes, 1000, mix=1, max_shapes=200).padding < 0.1
    assert batches_of(sizes, 1000, max_shapes=2).padding > 0.5


# Pairs that are too long


def test_a_pair_longer_than_a_batch_is_named():
    with pytest.raises(ValueError, match="pair 1 has 51 tokens, a batch at most 50") as error:
        batches_of([(3, 3), (3, 50), (4, 4)], max_tokens=50)
    assert "max_length" in str(error.value)
    assert len(batches_of([(3, 3), (3, 49)], max_tokens=50)) == 2


def test_pairs_over_max_length_are_dropped_and_counted():
    batches = batches_of([(3, 3), (3, 50), (50, 3), (9, 9)], max_tokens=20, max_length=10)
    assert batches.dropped == 2
    assert sorted(n for batch in batches.epoch(0) for n in numbers(batch)) == [0, 3]
    assert batches.target_tokens == 4 + 10


def test_nothing_to_batch_is_refused():
    with pytest.raises(ValueError, match="no pair to batch: 0 given, 0 too long"):
        batches_of([])
    with pytest.raises(ValueError, match="no pair to batch: 1 given, 1 too long"):
        batches_of([(30, 30)], max_length=10)


def test_one_shape_cannot_hold_a_smaller_last_batch():
    with pytest.raises(ValueError, match="max_shapes must be at least 2, not 1"):
        batches_of([(3, 3)], max_shapes=1)


def test_a_pool_has_at_least_one_batch():
    with pytest.raises(ValueError, match="mix must be at least 1, not 0"):
        batches_of([(3, 3)], mix=0)
