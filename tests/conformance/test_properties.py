"""Properties of the whole model, on batches that hypothesis makes up."""

from functools import lru_cache

import torch
from conformance.reference import TINY, build
from hypothesis import given, settings
from hypothesis import strategies as st

# The same examples on every machine and in every run.
few = settings(max_examples=20, deadline=None, derandomize=True, database=None)

PAD = 5  # not 0, so that nothing can assume it
words = st.integers(0, TINY["vocab_size"] - 1).filter(lambda token: token != PAD)
sentences = st.lists(words, min_size=1, max_size=7)
pairs = st.lists(st.tuples(sentences, sentences), min_size=1, max_size=4)
norms = st.sampled_from(["post", "pre"])
kinds = st.sampled_from(["sinusoidal", "concatenated", "learned"])
modes = st.booleans()


@lru_cache
def model_of(norm, kind, dropout=0.0):
    return build(norm=norm, positions=kind, pad_id=PAD, max_length=32, dropout=dropout)


def pad(rows, extra=0):
    """Lists of ids -> a LongTensor, with `extra` columns of pads beyond the longest row."""
    width = max(map(len, rows)) + extra
    return torch.tensor([row + [PAD] * (width - len(row)) for row in rows])


def assert_same(x, y, atol=2e-5):
    torch.testing.assert_close(x, y, atol=atol, rtol=1e-5)


def words_only(logits, targets):
    """The logits at the words of each row, not at its pads."""
    return [row[: len(target)] for row, target in zip(logits, targets, strict=True)]


@few
@given(pairs, st.data(), norms, kinds, modes)
def test_a_future_token_never_changes_an_earlier_output(batch, data, norm, kind, training):
    sources, targets = map(list, zip(*batch, strict=True))
    model = model_of(norm, kind).train(training)
    source, target = pad(sources), pad(targets)
    cut = data.draw(st.integers(0, target.size(1) - 1), label="first position changed")
    rest = target.size(1) - cut
    future = st.lists(st.integers(0, 39), min_size=rest, max_size=rest)  # pads among them
    changed = target.clone()
    changed[:, cut:] = torch.tensor(data.draw(future, label="new tokens"))
    assert_same(model(source, changed)[:, :cut], model(source, target)[:, :cut])


@few
@given(pairs, st.data(), st.integers(0, 1000))
def test_nor_under_dropout_with_the_same_random_numbers(batch, data, seed):
    sources, targets = map(list, zip(*batch, strict=True))
    model = model_of("post", "sinusoidal", dropout=0.3).train()
    source, target = pad(sources), pad(targets)
    cut = data.draw(st.integers(0, target.size(1) - 1), label="first position changed")
    changed = target.clone()
    changed[:, cut:] = (target[:, cut:] + 7) % 40
    torch.manual_seed(seed)
    before = model(source, target)
    torch.manual_seed(seed)
    assert_same(model(source, changed)[:, :cut], before[:, :cut])


@few
@given(pairs, st.integers(0, 4), st.integers(0, 4), norms, kinds, modes)
def test_more_pads_change_nothing(batch, in_source, in_target, norm, kind, training):
    sources, targets = map(list, zip(*batch, strict=True))
    model = model_of(norm, kind).train(training)
    plain = model(pad(sources), pad(targets))
    padded = model(pad(sources, in_source), pad(targets, in_target))
    for x, y in zip(words_only(plain, targets), words_only(padded, targets), strict=True):
        assert_same(x, y)


@few
@given(pairs, st.integers(1, 4), norms)
def test_more_pads_change_no_gradient(batch, extra, norm):
    sources, targets = map(list, zip(*batch, strict=True))
    gradients = []
    for more in (0, extra):
        model = model_of(norm, "sinusoidal").train()
        model.zero_grad()
        logits = model(pad(sources, more), pad(targets, more))
        losses = [(row[:, 1] - row.logsumexp(dim=-1)).sum() for row in words_only(logits, targets)]
        sum(losses).backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for x, y in zip(*gradients, strict=True):
        assert_same(x, y, atol=1e-3)


@few
@given(pairs, st.randoms(use_true_random=False), norms, modes)
def test_the_order_of_the_batch_does_not_matter(batch, random, norm, training):
    sources, targets = map(list, zip(*batch, strict=True))
    model = model_of(norm, "sinusoidal").train(training)
    order = list(range(len(batch)))
    random.shuffle(order)
    source, target = pad(sources), pad(targets)
    assert_same(model(source[order], target[order]), model(source, target)[order])


@few
@given(pairs, pairs, norms, modes)
def test_the_other_sentences_of_the_batch_do_not_matter(batch, others, norm, training):
    sources, targets = map(list, zip(*batch, strict=True))
    other_sources, other_targets = map(list, zip(*others, strict=True))
    model = model_of(norm, "sinusoidal").train(training)
    together = model(pad(sources + other_sources), pad(targets + other_targets))
    for i, (source, target) in enumerate(batch):
        alone = model(pad([source]), pad([target]))[0]
        assert_same(together[i, : len(target)], alone)


@few
@given(pairs, st.data(), norms, kinds)
def test_decoding_in_pieces_equals_decoding_at_once(batch, data, norm, kind):
    sources, targets = map(list, zip(*batch, strict=True))
    model = model_of(norm, kind).eval()
    source, target = pad(sources), pad(targets)
    memory, cache, pieces = model.encode(source), model.new_cache(), []
    while cache.length < target.size(1):
        size = data.draw(st.integers(1, target.size(1) - cache.length), label="tokens at once")
        piece = target[:, cache.length : cache.length + size]
        pieces.append(model.decode(piece, memory, source, cache=cache))
    assert_same(torch.cat(pieces, dim=1), model(source, target))


@few
@given(pairs, st.data(), norms)
def test_beams_may_move_at_any_step(batch, data, norm):
    sources, targets = map(list, zip(*batch, strict=True))
    model = model_of(norm, "sinusoidal").eval()
    source, target = pad(sources), pad(targets)
    cache = model.new_cache()
    seen = target
    model.decode(target, model.encode(source), source, cache=cache)
    for _ in range(2):
        count = len(source)
        rows = data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=5), label="rows")
        cache.select(torch.tensor(rows))
        source, seen = source[rows], seen[rows]
        new = torch.tensor([[data.draw(words)] for _ in rows])
        cached = model.decode(new, model.encode(source), source, cache=cache)
        seen = torch.cat([seen, new], dim=1)
        assert_same(cached[:, 0], model(source, seen)[:, -1])
