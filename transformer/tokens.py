# Written from chapters/5-1-data.ipynb by chapters/_book/export.py. Edit the chapter.
"""Text to token ids and back by byte-pair encoding (paper section 5.1)."""

__all__ = [
    "OPTIONS",
    "Tokenizer",
    "normalise",
    "train_model",
]

import io
import os
import random
import re
import tempfile
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path


def normalise(text: str) -> str:
    """Compose accents (NFC), make runs of white space one space, strip the ends.

    U+2581, sentencepiece's own sign for a space, becomes an underscore.
    """
    return " ".join(unicodedata.normalize("NFC", text).replace("\u2581", "_").split())


OPTIONS = {
    "model_type": "bpe",
    "character_coverage": 1.0,
    "normalization_rule_name": "identity",  # `normalise` has been there
    "max_sentence_length": 1 << 30,  # longer lines would be left out without a word
    "num_threads": 1,  # the number is stored in the model
    "minloglevel": 2,
    "pad_id": 0,
    "bos_id": 1,
    "eos_id": 2,
    "unk_id": 3,
    # Text of these names would be cut out of the training text. No text has two spaces.
    "pad_piece": "\u2581\u2581pad",
    "bos_piece": "\u2581\u2581bos",
    "eos_piece": "\u2581\u2581eos",
    "unk_piece": "\u2581\u2581unk",
    "unk_surface": "\u2047",
}


def train_model(lines: Sequence[str], vocab_size: int) -> bytes:
    """Learn a sentencepiece model; ValueError when the text has no such vocabulary."""
    import sentencepiece

    writer = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=writer,
            vocab_size=vocab_size,
            **OPTIONS,
        )
    except RuntimeError as error:
        largest = re.search(r"value <= (\d+)", str(error))
        smallest = re.search(r"required_chars\. \d+ vs (\d+)", str(error))
        if not largest and not smallest:
            raise
        limit = f"the largest possible is {largest[1]}" if largest else None
        limit = limit or f"its characters alone need {smallest[1]}"
        message = f"this text has no vocabulary of {vocab_size}: {limit}"
        raise ValueError(message) from error
    return writer.getvalue()


class Tokenizer:
    """A sentencepiece model with ids for padding, BOS, EOS and the unknown character.

    Both ways it works on normalised text: decode(encode(text)) == normalise(text),
    where runs of characters that training never saw come back as U+2047.
    """

    def __init__(self, model: bytes):
        import sentencepiece

        self.model = model
        self.processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.vocab_size = self.processor.get_piece_size()
        self.pad_id = self.processor.pad_id()
        self.bos_id = self.processor.bos_id()
        self.eos_id = self.processor.eos_id()
        self.unk_id = self.processor.unk_id()
        if min(self.pad_id, self.bos_id, self.eos_id, self.unk_id) < 0:
            raise ValueError("the sentencepiece model lacks one of pad, bos, eos, unk")

    @classmethod
    def train(
        cls,
        lines: Iterable[str],
        vocab_size: int,
        path: str | Path | None = None,
        seed: int = 0,
        max_lines: int = 2_000_000,
    ) -> "Tokenizer":
        """Learn `vocab_size` pieces from the lines, training text only; save them at
        `path`.

        Beyond `max_lines` lines, a sample of so many, drawn by `seed`. ValueError when
        the text offers too few merges for the vocabulary, or has too many different
        characters.
        """
        # A line with U+2585, a reserved sign, would be left out without a word.
        lines = [
            line for line in (normalise(x).replace("\u2585", "") for x in lines) if line
        ]
        if not lines:
            raise ValueError("no text to learn a vocabulary from")
        if len(lines) > max_lines:
            lines = random.Random(seed).sample(lines, max_lines)
        tokenizer = cls(train_model(lines, vocab_size))
        if path is not None:
            tokenizer.save(path)
        return tokenizer

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        """Read a model saved before. ValueError when the file is not one."""
        try:
            return cls(Path(path).read_bytes())
        except RuntimeError as error:
            raise ValueError(f"{path} is not a sentencepiece model") from error

    def save(self, path: str | Path) -> None:
        """Write the model, whole or not at all."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(self.model)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without BOS and EOS; none for an empty text."""
        return self.processor.encode(normalise(text))

    def pieces(self, text: str) -> list[str]:
        """Return the pieces behind the ids of `encode`, to look at."""
        return self.processor.encode(normalise(text), out_type=str)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids; ValueError for one outside the vocabulary."""
        ids = [int(i) for i in ids]
        for i in ids:
            if not 0 <= i < self.vocab_size:
                raise ValueError(
                    f"id {i} is outside the vocabulary of {self.vocab_size}"
                )
        return self.processor.decode(ids)
