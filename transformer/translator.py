# Written from chapters/6-1-translation.ipynb by chapters/_book/export.py. Edit the chapter.
"""Text in, text out: tokenizer, model and beam search together (paper section 6.1)."""

__all__ = [
    "Translator",
    "check_lines",
    "groups",
    "one_line",
    "progress_bar",
]

from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from transformer.beam_search import beam_search
from transformer.checkpoints import load_model
from transformer.model import Transformer
from transformer.tokens import Tokenizer


def one_line(text: str) -> str:
    """A text on one line: every line break in it becomes a space."""
    return " ".join(text.splitlines()).strip()


def check_lines(lines: Iterable[str]) -> list[str]:
    """ValueError for one string in place of a list, or for a line that is no string."""
    if isinstance(lines, (str, bytes)):
        raise ValueError(f"translate takes a list of lines, not one string: [{lines[:40]!r}]")
    lines = list(lines)
    for number, line in enumerate(lines, 1):
        if not isinstance(line, str):
            raise ValueError(f"line {number} is not a string: {line!r}")
    return lines


def groups(
    sources: list[list[int]], max_tokens: int, max_sentences: int = 128
) -> Iterator[list[list[int]]]:
    """Cut sources, the longest first, into batches of at most `max_tokens` padded tokens."""
    ordered = sorted(sources, key=lambda ids: (-len(ids), ids))
    while ordered:
        count = max(1, min(max_tokens // len(ordered[0]), max_sentences))
        yield ordered[:count]
        ordered = ordered[count:]


class Translator:
    """A trained model and its tokenizer.

    `max_source` is the longest source in tokens, EOS included; `max_tokens` the padded source
    tokens translated at once.
    """

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer,
        max_source: int = 1024,
        max_tokens: int = 2000,
    ):
        for name in ("vocab_size", "pad_id", "bos_id", "eos_id"):
            ours, theirs = getattr(model.config, name), getattr(tokenizer, name)
            if ours != theirs:
                raise ValueError(f"{name} is {theirs} in the tokenizer and {ours} in the model")
        self.model, self.tokenizer = model, tokenizer
        self.max_source, self.max_tokens = max_source, max_tokens

    @classmethod
    def load(cls, run_folder: str | Path, device: str | None = None) -> "Translator":
        """The averaged or last model of a run, on the GPU when there is one."""
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        model = load_model(Path(run_folder)).to(device).eval()
        return cls(model, Tokenizer.load(Path(run_folder) / "tokenizer.model"))

    def translate(
        self,
        lines: Iterable[str],
        beam: int = 4,
        alpha: float = 0.6,
        max_extra: int = 50,
        progress: bool = False,
    ) -> list[str]:
        """Translate each line, in the order given; an empty line stays empty.

        ValueError for one string in place of a list, and for a line of more than `max_source`
        tokens. A line break inside a line counts as a space.
        """
        limit = self.source_limit(max_extra)
        lines = check_lines(lines)
        rows = [self.encode(line, number, limit) for number, line in enumerate(lines, 1)]
        # Each different source is translated once, in an order the input's does not change.
        found: dict[tuple[int, ...], str] = {(): ""}
        sources = [list(ids) for ids in set(rows) - {()}]
        with progress_bar(len(sources), progress) as bar:
            for group in groups(sources, self.max_tokens):
                results = beam_search(self.model, self.pad(group), beam, alpha, max_extra, n_best=1)
                for ids, result in zip(group, results, strict=True):
                    found[tuple(ids)] = self.decode(result[0].tokens)
                bar.update(len(group))
        return [found[ids] for ids in rows]

    def source_limit(self, max_extra: int) -> int:
        """The longest source that can be translated; learned positions end somewhere."""
        config = self.model.config
        if config.positions != "learned":
            return self.max_source
        return min(self.max_source, config.max_length - max_extra)

    def encode(self, line: str, number: int, limit: int) -> tuple[int, ...]:
        """Token ids with EOS, none at all for an empty line."""
        ids = self.tokenizer.encode(one_line(line))
        if not ids:
            return ()
        if len(ids) + 1 > limit:
            raise ValueError(f"line {number} has {len(ids) + 1} tokens, the limit is {limit}")
        return (*ids, self.tokenizer.eos_id)

    def decode(self, tokens: tuple[int, ...]) -> str:
        """Text of a hypothesis, on one line."""
        pieces = [token for token in tokens if token != self.tokenizer.eos_id]
        return one_line(self.tokenizer.decode(pieces))

    def pad(self, group: list[list[int]]) -> Tensor:
        """(B, S) on the model's device; the first is the longest."""
        longest = len(group[0])
        rows = [ids + [self.tokenizer.pad_id] * (longest - len(ids)) for ids in group]
        return torch.tensor(rows, device=next(self.model.parameters()).device)


def progress_bar(total: int, show: bool):
    """A bar over sentences."""
    from tqdm import tqdm

    return tqdm(total=total, unit="sentence", disable=not show)
