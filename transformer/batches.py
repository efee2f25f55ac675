# Written from chapters/5-1-data.ipynb by chapters/_book/export.py. Edit the chapter.
"""Batches of pairs of like length, within a budget of tokens (paper section 5.1)."""

__all__ = [
    "Batch",
    "Batches",
    "Pair",
    "Pool",
    "by_length",
    "collate",
    "cut_pools",
    "pools_within",
    "shapes_of",
]

from collections.abc import Iterator, Sequence
from random import Random
from typing import NamedTuple

import torch
from torch import Tensor

# Token ids of source and target, without BOS and EOS.
Pair = tuple[list[int], list[int]]


class Batch(NamedTuple):
    """Padded token ids of B pairs: source (B, S), target_in and target_out (B, T)."""

    source: Tensor
    target_in: Tensor
    target_out: Tensor
    target_tokens: int  # those of target_out that are no padding

    def to(self, device: torch.device | str) -> "Batch":
        """Return the batch on another device."""
        return Batch(*(tensor.to(device) for tensor in self[:3]), self.target_tokens)


def collate(
    pairs: Sequence[Pair],
    pad_id: int,
    bos_id: int,
    eos_id: int,
    source_length: int = 0,
    target_length: int = 0,
) -> Batch:
    """Pad pairs to one batch, no shorter than the lengths given.

    The source and target_out end with EOS, target_in begins with BOS.
    """

    def table(rows: list[list[int]], length: int) -> Tensor:
        length = max(length, *map(len, rows))
        return torch.tensor([row + [pad_id] * (length - len(row)) for row in rows])

    source = table([source + [eos_id] for source, _ in pairs], source_length)
    target_in = table([[bos_id] + target for _, target in pairs], target_length)
    target_out = table([target + [eos_id] for _, target in pairs], target_length)
    return Batch(
        source, target_in, target_out, sum(len(target) + 1 for _, target in pairs)
    )


class Pool(NamedTuple):
    """Pairs of one shape, by number; an epoch deals them out, `rows` to a batch."""

    members: list[int]
    rows: int
    source_length: int
    target_length: int


def by_length(sizes: Sequence[tuple[int, int]]) -> list[int]:
    """Return the numbers of the pairs, so that neighbours have like lengths.

    First by the longer side; then along the difference, to and fro, like a snake.
    """

    def key(number: int) -> tuple[int, int]:
        source, target = sizes[number]
        longer, difference = max(source, target), source - target
        return longer, difference if longer % 2 else -difference

    return sorted(range(len(sizes)), key=key)


def cut_pools(
    order: Sequence[int],
    sizes: Sequence[tuple[int, int]],
    max_tokens: int,
    batches: int,
) -> list[Pool]:
    """Cut a sorted list of pairs into pools of `batches` full batches each.

    A batch holds at most max_tokens positions a side, padding included. Only the last
    pool may hold fewer batches, and the last of them fewer rows.
    """
    pools, start = [], 0
    while start < len(order):
        end, source, target = start, 0, 0
        while end < len(order):
            wider = max(source, sizes[order[end]][0]), max(target, sizes[order[end]][1])
            if end + 1 - start > batches * (max_tokens // max(wider)):
                break
            source, target = wider
            end += 1
        rows = min(max_tokens // max(source, target), end - start)
        # What does not fill a row of each batch goes to the next pool.
        if end < len(order):
            rows = (end - start) // batches
            end = start + rows * batches
        members = list(order[start:end])
        source, target = (max(sizes[i][side] for i in members) for side in (0, 1))
        pools.append(Pool(members, rows, source, target))
        start = end
    return pools


def shapes_of(pools: Sequence[Pool]) -> set[tuple[int, int, int]]:
    """Return all (B, S, T) that batches cut from these pools can have."""
    shapes = set()
    for pool in pools:
        rest = len(pool.members) % pool.rows
        lengths = (pool.source_length, pool.target_length)
        shapes |= {(rows, *lengths) for rows in (pool.rows, rest) if rows}
    return shapes


def pools_within(
    order: Sequence[int],
    sizes: Sequence[tuple[int, int]],
    max_tokens: int,
    max_shapes: int,
    mix: int,
) -> list[Pool]:
    """Cut pools of at least `mix` batches that have at most `max_shapes` shapes."""
    if max_shapes < 2:  # the last batch may need a shape of its own
        raise ValueError(f"max_shapes must be at least 2, not {max_shapes}")
    if mix < 1:
        raise ValueError(f"mix must be at least 1, not {mix}")
    positions = sum(max(sizes[i]) for i in order)
    batches = max(mix, positions // max_tokens // max_shapes)
    while True:
        pools = cut_pools(order, sizes, max_tokens, batches)
        if len(shapes_of(pools)) <= max_shapes:
            return pools
        batches += 1 + batches // 16


class Batches:
    """All pairs of a corpus, as batches in an order that seed and epoch decide."""

    def __init__(
        self,
        pairs: Sequence[Pair],
        max_tokens: int,
        pad_id: int,
        bos_id: int,
        eos_id: int,
        seed: int = 0,
        max_shapes: int = 48,
        mix: int = 4,
        max_length: int | None = None,
    ):
        """`pairs` hold no BOS and EOS; `max_tokens` bounds a batch's positions a side.

        A pool has at least `mix` batches; 1 pads least, and is for evaluation: it never
        changes who shares a batch. Pairs longer than `max_length` (EOS counted) are
        left out and counted in `dropped`. ValueError names the pair that is longer than
        `max_tokens`.
        """
        self.pairs, self.max_tokens, self.seed = pairs, max_tokens, seed
        self.ids = (pad_id, bos_id, eos_id)
        sizes = [(len(source) + 1, len(target) + 1) for source, target in pairs]
        order = [
            i
            for i in by_length(sizes)
            if max_length is None or max(sizes[i]) <= max_length
        ]
        self.dropped = len(pairs) - len(order)
        if not order:
            raise ValueError(
                f"no pair to batch: {len(pairs)} given, {self.dropped} too long"
            )
        longest = max(sizes[order[-1]])
        if longest > max_tokens:
            what = (
                f"pair {order[-1]} has {longest} tokens, a batch at most {max_tokens}"
            )
            raise ValueError(
                f"{what}: raise max_tokens, or leave long pairs out by max_length"
            )
        self.source_tokens = sum(sizes[i][0] for i in order)
        self.target_tokens = sum(sizes[i][1] for i in order)
        self.pools = pools_within(order, sizes, max_tokens, max_shapes, mix)

    def __len__(self) -> int:
        """How many batches an epoch has; the same for all."""
        return sum(-(-len(pool.members) // pool.rows) for pool in self.pools)

    def plan(self, epoch: int) -> list[tuple[Pool, list[int]]]:
        """Return for each batch of an epoch its pool and the numbers of its pairs."""
        random = Random(f"{self.seed}/{epoch}")
        plan = []
        for pool in self.pools:
            members = pool.members.copy()
            random.shuffle(members)
            cuts = range(0, len(members), pool.rows)
            plan += [(pool, members[cut : cut + pool.rows]) for cut in cuts]
        random.shuffle(plan)
        return plan

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch, every pair once, from batch `start` on."""
        for pool, members in self.plan(number)[start:]:
            pairs = [self.pairs[i] for i in members]
            yield collate(pairs, *self.ids, pool.source_length, pool.target_length)

    @property
    def shapes(self) -> set[tuple[int, int, int]]:
        """All (B, S, T) that ever occur."""
        return shapes_of(self.pools)

    @property
    def padding(self) -> float:
        """The share of positions, source and target together, that hold padding."""
        widths = [
            len(p.members) * (p.source_length + p.target_length) for p in self.pools
        ]
        return 1 - (self.source_tokens + self.target_tokens) / sum(widths)
