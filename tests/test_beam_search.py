"""Beam search: equal to brute force, to its explicit form, and to itself in any batch."""

import functools
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from transformer.beam_search import (
    Hypothesis,
    beam_search,
    best,
    explicit_beam_search,
    hypothesis,
    is_over,
    length_penalty,
    top_candidates,
)
from transformer.model import Transformer, TransformerConfig

# Unusual ids on purpose: nothing may take them for 0, 1, 2.
PAD, BOS, EOS = 4, 0, 2


def tiny_model(seed: int, vocab_size: int = 6, sharpness: float = 2.0, **changes) -> Transformer:
    """A random Transformer; `sharpness` spreads its logits, so that choices differ."""
    settings = {"layers": 1, "d_model": 8, "d_ff": 16, "heads": 2, "dropout": 0.5, **changes}
    config = TransformerConfig(
        vocab_size=vocab_size, pad_id=PAD, bos_id=BOS, eos_id=EOS, tied=False, **settings
    )
    model = Transformer(config, torch.Generator().manual_seed(seed)).eval()
    with torch.no_grad():
        model.generator.table.weight.mul_(sharpness)
    return model


def tiny_sources(seed: int, lengths: list[int], vocab_size: int = 6) -> torch.Tensor:
    """Rows of pieces and EOS, of these lengths, padded to the longest."""
    generator = torch.Generator().manual_seed(seed)
    pieces = torch.tensor([i for i in range(vocab_size) if i not in (PAD, BOS, EOS)])
    rows = torch.full((len(lengths), max(lengths)), PAD)
    for row, length in enumerate(lengths):
        picks = torch.randint(len(pieces), (length - 1,), generator=generator)
        rows[row, :length] = torch.cat([pieces[picks], torch.tensor([EOS])])
    return rows


def next_token(model: Transformer, row: torch.Tensor):
    """log p(token | prefix, source) by a full decoder pass: no cache, no batch, no padding."""
    source = row[row != PAD][None]

    @functools.cache
    @torch.no_grad()
    def log_probs(prefix: tuple[int, ...]) -> list[float]:
        logits = model(source, torch.tensor([[BOS, *prefix]]))[0, -1]
        steps = logits.log_softmax(dim=-1)
        steps[[PAD, BOS]] = -math.inf
        return steps.tolist()

    return log_probs


@torch.no_grad()
def every_translation(model: Transformer, row: torch.Tensor, max_length: int, alpha: float):
    """All finished translations of at most `max_length` tokens, best first: 3^n of n pieces.

    Each is scored whole, by one pass over all of them with the right tokens fed in.
    """
    pieces = [i for i in range(model.config.vocab_size) if i not in (PAD, BOS, EOS)]
    lengths = range(max_length)
    every = [(*p, EOS) for n in lengths for p in itertools.product(pieces, repeat=n)]
    targets = torch.tensor([[*y, *[PAD] * (max_length - len(y))] for y in every])
    target_in = torch.cat([torch.full_like(targets[:, :1], BOS), targets[:, :-1]], dim=1)
    source = row[row != PAD].expand(len(every), -1)
    steps = model(source, target_in).log_softmax(dim=-1).gather(2, targets[:, :, None])[:, :, 0]
    log_probs = steps.masked_fill(targets == PAD, 0.0).sum(dim=1).tolist()
    found = [hypothesis(y, p, alpha, True) for y, p in zip(every, log_probs, strict=True)]
    return best(found, len(every))


class Lookup(nn.Module):
    """A model whose next token depends on the tokens so far by a table, whatever the source.

    It is decoded like a Transformer, and notes how many rows each step had.
    """

    class Cache:
        tokens = None

        def select(self, rows):
            self.tokens = self.tokens[rows]

    def __init__(self, table: dict[tuple[int, ...], list[float]], default: list[float]):
        super().__init__()
        ids = {"pad_id": PAD, "bos_id": BOS, "eos_id": EOS}
        self.config = TransformerConfig(len(default), layers=1, d_model=2, heads=1, **ids)
        self.table, self.default, self.rows = table, default, []

    def encode(self, source):
        return torch.zeros(*source.shape, 2)

    def new_cache(self):
        return self.Cache()

    def decode(self, target, memory, source, cache):
        assert target.size(1) == 1 and target.size(0) == memory.size(0) == source.size(0)
        seen = target if cache.tokens is None else torch.cat([cache.tokens, target], dim=1)
        cache.tokens = seen
        self.rows.append(len(seen))
        prefixes = [tuple(row[1:]) for row in seen.tolist()]
        assert all(row[0] == BOS for row in seen.tolist())
        logits = [self.table.get(prefix, self.default) for prefix in prefixes]
        return torch.tensor(logits).log()[:, None]


def probabilities(**given) -> list[float]:
    """Over 6 tokens: a = 1, b = 3, c = 5, end = EOS; the rest is shared with pad and BOS."""
    ids = {"a": 1, "b": 3, "c": 5, "end": EOS}
    row = [0.0] * 6
    for name, value in given.items():
        row[ids[name]] = value
    return row


A, B, C = 1, 3, 5


def test_length_penalty_counts_from_six():
    assert length_penalty(1, 0.6) == 1.0
    assert length_penalty(7, 1.0) == 2.0
    assert length_penalty(19, 0.5) == 2.0
    assert length_penalty(30, 0.0) == 1.0


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    alpha=st.floats(0, 3),
    sharpness=st.floats(0.5, 6),
    lengths=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    max_extra=st.integers(0, 2),
)
def test_beam_as_wide_as_the_space_equals_brute_force(seed, alpha, sharpness, lengths, max_extra):
    model, source = tiny_model(seed, sharpness=sharpness), tiny_sources(seed, lengths)
    found = beam_search(model, source, beam=4**5, alpha=alpha, max_extra=max_extra, n_best=3)
    for row, length, hypotheses in zip(source, lengths, found, strict=True):
        truth = every_translation(model, row, length + max_extra, alpha)[:3]
        assert [h.score for h in hypotheses] == pytest.approx([h.score for h in truth], abs=1e-4)
        if len(truth) == 1 or truth[0].score - truth[1].score > 1e-3:
            assert hypotheses[0].tokens == truth[0].tokens


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    alpha=st.sampled_from([0.0, 0.6, 1.0, 2.0]),
    sharpness=st.floats(0.5, 4),
    beam=st.integers(1, 7),
    n_best=st.integers(1, 7),
)
def test_batched_and_cached_equals_explicit(seed, alpha, sharpness, beam, n_best):
    n_best = min(beam, n_best)
    model, lengths = tiny_model(seed, 9, sharpness), [2, 5, 3]
    source = tiny_sources(seed, lengths, 9)
    found = beam_search(model, source, beam, alpha, max_extra=4, n_best=n_best)
    for row, length, hypotheses in zip(source, lengths, found, strict=True):
        args = (next_token(model, row), EOS, length + 4, beam, alpha, n_best)
        explicit = explicit_beam_search(*args)
        scores = [h.score for h in hypotheses]
        assert scores == pytest.approx([h.score for h in explicit], abs=1e-4)
        assert hypotheses[0].finished == explicit[0].finished
        if len(scores) == 1 or scores[0] - scores[1] > 1e-3:
            assert hypotheses[0].tokens == explicit[0].tokens


@pytest.mark.parametrize("n_best", [1, 3])
def test_stopping_bound_changes_nothing_but_time(n_best):
    """A search never stopped before the limit finds the same hypotheses."""
    finished = 0
    for seed in range(12):
        log_probs = next_token(tiny_model(seed, sharpness=2.0), tiny_sources(seed, [3])[0])
        args = (log_probs, EOS, 6, 3, 1.0, n_best)
        stopped, to_the_end = explicit_beam_search(*args), search_without_bound(*args)
        assert [h for h in stopped if h.finished] == to_the_end
        finished += len(to_the_end)
    assert finished >= 8 * n_best


def search_without_bound(log_probs, eos_id, max_length, beam, alpha, n_best):
    live, kept = [((), 0.0)], []
    for _ in range(max_length):
        options = [
            ((*y, token), p + step)
            for y, p in live
            for token, step in enumerate(log_probs(y))
            if step > -math.inf
        ]
        options.sort(key=lambda option: -option[1])
        kept += [hypothesis(y, p, alpha, True) for y, p in options[:beam] if y[-1] == eos_id]
        live = [(y, p) for y, p in options if y[-1] != eos_id][:beam]
    return best(kept, n_best)


def test_search_goes_on_when_the_top_hypothesis_ends_first():
    """The first ending is best by log P at its step, and a longer one has the better score."""
    table = {
        (): probabilities(a=0.55, end=0.45),
        (A,): probabilities(b=0.98, end=0.02),
        (A, B): probabilities(c=0.98, end=0.02),
        (A, B, C): probabilities(end=0.99, a=0.01),
    }
    model = Lookup(table, probabilities(end=1.0))
    short, long = (EOS,), (A, B, C, EOS)
    [plain] = beam_search(model, torch.tensor([[A, EOS]]), beam=2, alpha=0.0)
    assert plain[0].tokens == long
    table[()] = probabilities(a=0.45, end=0.55)
    [plain] = beam_search(model, torch.tensor([[A, EOS]]), beam=2, alpha=0.0)
    assert plain[0].tokens == short
    [penalised] = beam_search(model, torch.tensor([[A, EOS]]), beam=2, alpha=1.0)
    assert penalised[0].tokens == long
    assert penalised[0].score == pytest.approx(math.log(0.45 * 0.98**2 * 0.99) / (9 / 6))
    assert penalised[1].tokens == short


def test_explicit_search_takes_another_rule_to_stop():
    table = {(): [0.6, 0.4], (1,): [0.99, 0.01]}

    def log_probs(prefix):
        return [math.log(p) for p in table.get(prefix, [0.5, 0.5])]

    args = {"eos_id": 0, "max_length": 8, "beam": 2, "alpha": 6.0, "n_best": 1}
    [bound] = explicit_beam_search(log_probs, **args)
    [first] = explicit_beam_search(log_probs, **args, stop=lambda kept, *_: bool(kept))
    assert first.tokens == (0,) and len(bound.tokens) > 1 and bound.score > first.score


def test_bound_uses_the_length_limit():
    kept = [Hypothesis((EOS,), -1.0, -1.0, True)]
    assert is_over(kept, alive=-3.0, bound=3.0, beam=2, n_best=1)
    assert not is_over(kept, alive=-2.9, bound=3.0, beam=2, n_best=1)
    assert not is_over(kept, alive=-100.0, bound=1.0, beam=2, n_best=2)
    assert is_over(kept, alive=-math.inf, bound=1.0, beam=2, n_best=2)
    assert not is_over([], alive=-3.0, bound=1.0, beam=1, n_best=1)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
def test_beam_of_one_is_greedy(alpha):
    for seed in range(4):
        model, source = tiny_model(seed, 9, 3.0), tiny_sources(seed, [4, 2, 6], 9)
        for row, [one] in zip(source, beam_search(model, source, 1, alpha, 5), strict=True):
            log_probs, tokens = next_token(model, row), ()
            limit = int((row != PAD).sum()) + 5
            while len(tokens) < limit and tokens[-1:] != (EOS,):
                steps = log_probs(tokens)
                tokens = (*tokens, steps.index(max(steps)))
            assert one.tokens == tokens
            assert one.finished == (tokens[-1] == EOS)


def test_one_eos_and_no_padding_or_bos():
    model, source = tiny_model(3, 8, 0.3), tiny_sources(3, [7, 3, 5, 1], 8)
    for hypotheses in beam_search(model, source, beam=12, alpha=0.6, max_extra=6):
        assert len({h.tokens for h in hypotheses}) == len(hypotheses) >= 1
        assert [h.score for h in hypotheses] == sorted((h.score for h in hypotheses), reverse=True)
        for h in hypotheses:
            assert h.finished and h.tokens.count(EOS) == 1 and h.tokens[-1] == EOS
            assert PAD not in h.tokens and BOS not in h.tokens


def test_log_prob_is_that_of_the_whole_sequence():
    model, source = tiny_model(1, 9), tiny_sources(1, [4, 6], 9)
    for row, hypotheses in zip(source, beam_search(model, source, beam=3), strict=True):
        for h in hypotheses:
            target = torch.tensor([[BOS, *h.tokens[:-1]]])
            logits = model(row[row != PAD][None], target)[0]
            log_prob = logits.log_softmax(-1)[range(len(h.tokens)), h.tokens].sum().item()
            assert h.log_prob == pytest.approx(log_prob, abs=1e-4)
            assert h.score == pytest.approx(log_prob / length_penalty(len(h.tokens), 0.6), abs=1e-4)


def test_cached_equals_uncached():
    """The decoder is run over the whole prefix at each step instead of through its cache."""

    class Uncached(Transformer):
        def new_cache(self):
            return Lookup.Cache()

        def decode(self, target, memory, source, cache=None):
            if cache is not None:
                seen = target if cache.tokens is None else torch.cat([cache.tokens, target], dim=1)
                target = cache.tokens = seen
            return super().decode(target, memory, source)

    for seed in range(3):
        model, source = tiny_model(seed, 15, 1.5, layers=2), tiny_sources(seed, [8, 3, 5], 15)
        plain = Uncached(model.config)
        plain.load_state_dict(model.state_dict())
        for fast, slow in zip(beam_search(model, source), beam_search(plain, source), strict=True):
            assert [h.tokens for h in fast] == [h.tokens for h in slow]
            scores = [h.score for h in slow]
            assert [h.score for h in fast] == pytest.approx(scores, abs=1e-5)


def test_same_alone_batched_and_shuffled():
    model, lengths = tiny_model(0, 20, 1.5, layers=2), [3, 9, 1, 6, 4, 9, 2]
    source = tiny_sources(0, lengths, 20)
    together = beam_search(model, source)
    order = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(1)).tolist()
    shuffled = beam_search(model, source[order])
    for row, length in enumerate(lengths):
        [alone] = beam_search(model, source[row : row + 1, :length])
        assert [h.tokens for h in alone] == [h.tokens for h in together[row]]
        assert [h.tokens for h in alone] == [h.tokens for h in shuffled[order.index(row)]]
        assert alone[0].score == pytest.approx(together[row][0].score, abs=1e-5)


def test_beam_wider_than_the_vocabulary():
    model, source = tiny_model(2), tiny_sources(2, [2, 1])
    for length, hypotheses in zip([2, 1], beam_search(model, source, 50, 0.6, 1), strict=True):
        # 3 pieces: 1 + 3 + 9 translations of at most 3 tokens, 1 + 3 of at most 2.
        assert len(hypotheses) == {2: 13, 1: 4}[length]


def test_vocabulary_of_eos_alone():
    config = {"layers": 1, "d_model": 4, "d_ff": 4, "heads": 1}
    model = Transformer(TransformerConfig(vocab_size=3, **config)).eval()
    [[one]] = beam_search(model, torch.tensor([[2]]), beam=4)
    assert one.tokens == (2,) and one.finished


def test_beam_keeps_its_width_when_hypotheses_end():
    likely_end = probabilities(a=0.3, b=0.2, c=0.1, end=0.4)
    model = Lookup({}, likely_end)
    beam_search(model, torch.tensor([[A, EOS]]), beam=3, alpha=5.0, max_extra=3)
    assert model.rows == [1, 3, 3, 3, 3]
    [hypotheses] = beam_search(model, torch.tensor([[A, EOS]]), beam=3, alpha=0.0, max_extra=3)
    assert [h.tokens for h in hypotheses] == [(EOS,), (A, EOS), (B, EOS)]


def test_finished_sentences_leave_the_batch():
    model = Lookup({}, probabilities(a=1.0))
    found = beam_search(model, torch.tensor([[A, EOS, PAD], [A, A, EOS]]), beam=1, max_extra=0)
    assert model.rows == [2, 2, 1]
    assert [h.tokens for [h] in found] == [(A, A), (A, A, A)]


def test_nothing_finishes():
    model = Lookup({}, probabilities(a=0.7, b=0.3))
    [hypotheses] = beam_search(model, torch.tensor([[A, B, EOS]]), beam=2, alpha=1.0, max_extra=2)
    assert len(hypotheses) == 2 and hypotheses[0].tokens == (A,) * 5
    assert not any(h.finished for h in hypotheses)
    assert hypotheses[0].score == pytest.approx(5 * math.log(0.7) / (10 / 6))


def test_length_limit_counts_eos_on_both_sides_and_no_padding():
    model = Lookup({(A,) * 4: probabilities(end=1.0)}, probabilities(a=1.0))
    source = torch.tensor([[A, B, EOS, PAD, PAD, PAD]])
    [[inside]] = beam_search(model, source, beam=1, max_extra=2)
    assert inside.tokens == (A, A, A, A, EOS) and inside.finished
    [[outside]] = beam_search(model, source, beam=1, max_extra=1)
    assert outside.tokens == (A, A, A, A) and not outside.finished


def test_equal_scores_go_by_beam_then_by_token():
    model = Lookup({}, probabilities(a=0.25, b=0.25, c=0.25, end=0.25))
    source = torch.tensor([[A, EOS]] * 3)
    found = beam_search(model, source, beam=2, alpha=0.0, max_extra=1)
    assert found[0] == found[1] == found[2]
    assert [h.tokens for h in found[0]] == [(EOS,), (A, EOS)]
    explicit = explicit_beam_search(lambda _: [-math.inf] + [math.log(0.25)] * 3, 2, 3, 2, 0.0)
    assert [h.tokens for h in explicit] == [(2,), (1, 2)]


def test_top_candidates_break_ties_by_index():
    scores = torch.zeros(2, 1000)
    scores[0, 700] = 1.0
    values, index = top_candidates(scores, 4)
    assert index.tolist() == [[700, 0, 1, 2], [0, 1, 2, 3]]
    assert values.tolist() == [[1, 0, 0, 0], [0, 0, 0, 0]]
    assert top_candidates(torch.tensor([[1.0, 3.0, 3.0]]), 3)[1].tolist() == [[1, 2, 0]]


def test_model_is_run_in_eval_mode_and_given_back_as_it_was():
    model, source = tiny_model(0, 9), tiny_sources(0, [4], 9)
    expected = beam_search(model, source)
    model.train()
    assert beam_search(model, source) == expected
    assert model.training and model.dropout.training


def test_no_sentences():
    assert beam_search(tiny_model(0), torch.zeros(0, 5, dtype=torch.long)) == []


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"alpha": -0.1}, "alpha must be at least 0 .* not -0.1"),
        ({"alpha": math.nan}, "alpha .* nan"),
        ({"beam": 0}, "beam must be at least 1, not 0"),
        ({"max_extra": -1}, "max_extra must be at least 0, not -1"),
        ({"n_best": 5}, "n_best must be from 1 to the beam of 4, not 5"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        beam_search(tiny_model(0), tiny_sources(0, [3]), **settings)


def test_bad_sources_are_named():
    with pytest.raises(ValueError, match="source row 1 holds nothing but padding"):
        beam_search(tiny_model(0), torch.tensor([[A, EOS], [PAD, PAD]]))
    with pytest.raises(ValueError, match=r"source must be \(B, S\), not \(2,\)"):
        beam_search(tiny_model(0), torch.tensor([A, EOS]))


def test_learned_positions_say_their_limit():
    model = tiny_model(0, positions="learned", max_length=10)
    with pytest.raises(ValueError, match=r"source row 1: 4 \+ 7 positions asked for, 10 learned"):
        beam_search(model, tiny_sources(0, [3, 4]), max_extra=7)
    assert len(beam_search(model, tiny_sources(0, [3]), max_extra=7)) == 1


def test_a_model_that_gives_nan_is_an_error():
    model = Lookup({(A,): [math.nan] * 6}, probabilities(a=1.0))
    with pytest.raises(ValueError, match="not numbers at output position 2"):
        beam_search(model, torch.tensor([[A, EOS]]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions(dtype):
    model, source = tiny_model(0, 9).to(dtype), tiny_sources(0, [4, 2], 9)
    for hypotheses in beam_search(model, source):
        assert hypotheses[0].finished and math.isfinite(hypotheses[0].score)
