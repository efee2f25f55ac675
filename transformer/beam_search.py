# Written from chapters/6-1-translation.ipynb by chapters/_book/export.py. Edit the chapter.
"""Beam search, in the open and batched with a key/value cache (paper section 6.1)."""

__all__ = [
    "Beams",
    "Hypothesis",
    "advance",
    "beam_search",
    "best",
    "candidates",
    "check_search",
    "collect",
    "explicit_beam_search",
    "first_beams",
    "hypothesis",
    "is_over",
    "keep_sentences",
    "length_limits",
    "length_penalty",
    "run_search",
    "top_candidates",
    "unfinished",
]

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Hypothesis:
    """One translation found by a search.

    `tokens` starts after BOS and, when `finished`, ends in its one EOS. `log_prob` is
    log P(tokens | source), and `score` is that over the length penalty.
    """

    tokens: tuple[int, ...]
    score: float
    log_prob: float
    finished: bool


def length_penalty(length: int, alpha: float) -> float:
    """lp(Y) = ((5 + |Y|) / 6)^alpha, the EOS counted in |Y| (section 6.1, after GNMT)."""
    return ((5 + length) / 6) ** alpha


def hypothesis(tokens: Sequence[int], log_prob: float, alpha: float, finished: bool) -> Hypothesis:
    """A Hypothesis with its score."""
    score = log_prob / length_penalty(len(tokens), alpha)
    return Hypothesis(tuple(tokens), score, log_prob, finished)


def best(hypotheses: list[Hypothesis], count: int) -> list[Hypothesis]:
    """The `count` of highest score, best first; ties stay in their order."""
    return sorted(hypotheses, key=lambda h: -h.score)[:count]


def is_over(kept: list[Hypothesis], alive: float, bound: float, beam: int, n_best: int) -> bool:
    """Whether no live beam can enter the n best any more.

    `kept` are the finished hypotheses, best first; `alive` is the highest log P of a live beam,
    -inf when none is left; `bound` is the length penalty at the length limit. A beam of one is
    greedy decoding: it takes the best token at each step, and an EOS ends it.
    """
    if alive == -math.inf or (beam == 1 and kept):
        return True
    return len(kept) >= n_best and alive / bound <= kept[n_best - 1].score


def check_search(beam: int, alpha: float, max_extra: int, n_best: int) -> None:
    """ValueError for settings under which the search is not defined."""
    if beam < 1:
        raise ValueError(f"beam must be at least 1, not {beam}")
    if not 0 <= alpha <= 10:  # the bound needs the one limit, floating point the other
        raise ValueError(f"alpha must be at least 0 and at most 10, not {alpha}")
    if max_extra < 0:
        raise ValueError(f"max_extra must be at least 0, not {max_extra}")
    if not 1 <= n_best <= beam:
        raise ValueError(f"n_best must be from 1 to the beam of {beam}, not {n_best}")


def explicit_beam_search(
    log_probs: Callable[[tuple[int, ...]], Sequence[float]],
    eos_id: int,
    max_length: int,
    beam: int = 4,
    alpha: float = 0.6,
    n_best: int | None = None,
    stop: Callable[..., bool] = is_over,
) -> list[Hypothesis]:
    """Beam search for one sentence in plain Python: no batch, no cache, no tensor.

    `log_probs(prefix)` gives log p(token | prefix, source) for every token, -inf where a token
    may not follow. Returns the n best finished hypotheses (default: `beam`), or the unfinished
    ones when none ends within `max_length` tokens, EOS included.
    """
    n_best = beam if n_best is None else n_best
    check_search(beam, alpha, 0, n_best)
    bound = length_penalty(max_length, alpha)
    live, kept = [((), 0.0)], []
    for _ in range(max_length):
        candidates = [
            ((*prefix, token), log_prob + step)
            for prefix, log_prob in live
            for token, step in enumerate(log_probs(prefix))
            if step > -math.inf
        ]
        candidates.sort(key=lambda candidate: -candidate[1])
        ended = [hypothesis(y, p, alpha, True) for y, p in candidates[:beam] if y[-1] == eos_id]
        kept = best(kept + ended, n_best)
        live = [(y, p) for y, p in candidates if y[-1] != eos_id][:beam]
        if stop(kept, live[0][1] if live else -math.inf, bound, beam, n_best):
            break
    return kept or best([hypothesis(y, p, alpha, False) for y, p in live], n_best)


@dataclass
class Beams:
    """The sentences still being translated, each with W live beams.

    `tokens` (B, W, t) holds the beams without BOS, `log_probs` (B, W) their log P, -inf where a
    place in the beam is empty. Beam w of sentence b is row b W + w of the cache, and of `source`
    and `memory`, which are repeated for it. `sentences` says which input each b is.
    """

    sentences: list[int]
    source: Tensor
    memory: Tensor
    cache: object
    tokens: Tensor
    log_probs: Tensor


def first_beams(model: nn.Module, source: Tensor) -> Beams:
    """One empty beam for each row of `source` (B, S)."""
    rows = source.size(0)
    tokens = source.new_zeros(rows, 1, 0)
    log_probs = torch.zeros(rows, 1, device=source.device)
    memory, cache = model.encode(source), model.new_cache()
    return Beams(list(range(rows)), source, memory, cache, tokens, log_probs)


def top_candidates(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Values and indices of the `count` largest of each row (B, N), best first.

    Equal values go by index. torch.topk leaves their order open, and which of them it returns.
    """
    values, index = scores.topk(min(count + 1, scores.size(1)))
    worst, next_one = values[:, count - 1], values[:, -1]
    if values.size(1) > count and ((worst == next_one) & (worst > -math.inf)).any():
        values, index = scores.sort(dim=1, descending=True, stable=True)
        return values[:, :count], index[:, :count]
    index, order = index[:, :count].sort(dim=1)
    values, order = values.gather(1, order).sort(dim=1, descending=True, stable=True)
    return values, index.gather(1, order)


def candidates(model: nn.Module, beams: Beams, beam: int) -> tuple[Tensor, Tensor, Tensor]:
    """Run the decoder by one step: log P, parent and token of the 2 x beam best, each (B, C).

    A live beam has one EOS among its continuations, so `beam` others are always there. Padding
    and BOS are never generated; their probability is lost, not shared out.
    """
    c, (sentences, width, length) = model.config, beams.tokens.shape
    bos = beams.tokens.new_full((sentences, width, 1), c.bos_id)
    newest = beams.tokens[:, :, -1:] if length else bos
    logits = model.decode(newest.flatten(0, 1), beams.memory, beams.source, cache=beams.cache)
    steps = logits[:, -1].to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(dim=-1)
    steps[:, [c.pad_id, c.bos_id]] = -math.inf
    totals = (beams.log_probs.flatten()[:, None] + steps).view(sentences, -1)
    values, index = top_candidates(totals, min(2 * beam, totals.size(1)))
    if values.isnan().any():
        raise ValueError(f"the model's logits are not numbers at output position {length + 1}")
    return values, index // steps.size(1), index % steps.size(1)


def collect(
    beams: Beams, found: tuple[Tensor, Tensor, Tensor], eos_id: int, beam: int, alpha: float
) -> dict[int, list[Hypothesis]]:
    """The hypotheses that end here: an EOS among the `beam` best candidates of its sentence."""
    values, parents, tokens = (part[:, :beam] for part in found)
    row, place = ((tokens == eos_id) & (values > -math.inf)).nonzero(as_tuple=True)
    prefixes = beams.tokens[row, parents[row, place]].tolist()
    ended: dict[int, list[Hypothesis]] = {}
    log_probs = values[row, place].tolist()
    for b, prefix, log_prob in zip(row.tolist(), prefixes, log_probs, strict=True):
        one = hypothesis([*prefix, eos_id], log_prob, alpha, finished=True)
        ended.setdefault(beams.sentences[b], []).append(one)
    return ended


def advance(beams: Beams, found: tuple[Tensor, Tensor, Tensor], eos_id: int, beam: int) -> Tensor:
    """Make the `beam` best candidates that go on the live beams; return their parents (B, W)."""
    values, parents, tokens = found
    going_on = (tokens == eos_id).long().sort(dim=1, stable=True).indices[:, :beam]
    parents, tokens = parents.gather(1, going_on), tokens.gather(1, going_on)
    values = values.gather(1, going_on)
    beams.log_probs = values.masked_fill(tokens == eos_id, -math.inf)
    prefixes = beams.tokens.gather(1, parents[:, :, None].expand(-1, -1, beams.tokens.size(2)))
    beams.tokens = torch.cat([prefixes, tokens[:, :, None]], dim=2)
    return parents


def keep_sentences(beams: Beams, parents: Tensor, keep: list[int], old_width: int) -> None:
    """Reorder the cache to the new beams, and let the sentences that are done leave the batch."""
    kept = torch.tensor(keep, dtype=torch.long, device=parents.device)
    rows = (kept[:, None] * old_width + parents[kept]).flatten()
    beams.cache.select(rows)
    if len(keep) < parents.size(0) or parents.size(1) != old_width:
        beams.source, beams.memory = beams.source[rows], beams.memory[rows]
    beams.tokens, beams.log_probs = beams.tokens[kept], beams.log_probs[kept]
    beams.sentences = [beams.sentences[b] for b in keep]


def length_limits(config, source: Tensor, max_extra: int) -> list[int]:
    """The most tokens each row of `source` (B, S) may get: its own number plus `max_extra`.

    Padding does not count; the EOS does, on both sides. ValueError for a row of padding alone,
    and for learned positions when the limit lies beyond them.
    """
    if source.dim() != 2:
        raise ValueError(f"source must be (B, S), not {tuple(source.shape)}")
    lengths = (source != config.pad_id).sum(dim=1).tolist()
    for row, length in enumerate(lengths):
        if not length:
            raise ValueError(f"source row {row} holds nothing but padding")
        if config.positions == "learned" and length + max_extra > config.max_length:
            asked = f"{length} + {max_extra} positions asked for"
            raise ValueError(f"source row {row}: {asked}, {config.max_length} learned")
    return [length + max_extra for length in lengths]


@torch.no_grad()
def beam_search(
    model: nn.Module,
    source: Tensor,
    beam: int = 4,
    alpha: float = 0.6,
    max_extra: int = 50,
    n_best: int | None = None,
) -> list[list[Hypothesis]]:
    """Translate `source` (B, S): for each row its n best hypotheses, best first (section 6.1).

    n_best is the beam by default; asking for fewer stops earlier and returns the same ones. A
    row gets its finished hypotheses or, when nothing ends within its number of tokens plus
    `max_extra`, the unfinished ones, marked so. ValueError for a beam below 1 or an alpha below 0.
    """
    n_best = beam if n_best is None else n_best
    check_search(beam, alpha, max_extra, n_best)
    limits = length_limits(model.config, source, max_extra)
    training = model.training
    model.eval()
    try:
        return run_search(model, source, limits, beam, alpha, n_best) if len(limits) else []
    finally:
        model.train(training)


def run_search(
    model: nn.Module, source: Tensor, limits: list[int], beam: int, alpha: float, n_best: int
) -> list[list[Hypothesis]]:
    """Step all sentences together until the last one has left the batch."""
    eos_id = model.config.eos_id
    bounds = [length_penalty(limit, alpha) for limit in limits]
    kept: list[list[Hypothesis]] = [[] for _ in limits]
    beams = first_beams(model, source)
    while beams.sentences:
        found, width = candidates(model, beams, beam), beams.tokens.size(1)
        for sentence, ended in collect(beams, found, eos_id, beam, alpha).items():
            kept[sentence] = best(kept[sentence] + ended, n_best)
        parents = advance(beams, found, eos_id, beam)
        keep, length = [], beams.tokens.size(2)
        for b, alive in enumerate(beams.log_probs[:, 0].tolist()):
            sentence = beams.sentences[b]
            if is_over(kept[sentence], alive, bounds[sentence], beam, n_best):
                continue
            if length < limits[sentence]:
                keep.append(b)
            elif not kept[sentence]:
                kept[sentence] = unfinished(beams, b, alpha, n_best)
        keep_sentences(beams, parents, keep, width)
    return kept


def unfinished(beams: Beams, b: int, alpha: float, n_best: int) -> list[Hypothesis]:
    """The live beams of sentence b, best first: what is returned when nothing ended in time."""
    pairs = zip(beams.tokens[b].tolist(), beams.log_probs[b].tolist(), strict=True)
    return best([hypothesis(y, p, alpha, False) for y, p in pairs if p > -math.inf], n_best)
