# Written from chapters/5-1-data.ipynb by chapters/_book/export.py. Edit the chapter.
"""Parallel text: where it comes from and how it is read (paper section 5.1)."""

__all__ = [
    "Corpus",
    "Files",
    "GRAMMAR_SIZES",
    "ROOT",
    "decode_lines",
    "fetch",
    "fetch_file",
    "fetch_known",
    "find_own",
    "known_corpora",
    "load_corpus",
    "mirrored",
    "read_grammar",
    "read_lines",
    "read_pairs",
    "sha256",
    "visible",
]

import gzip
import hashlib
import json
import os
import unicodedata
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = (
    Path(__file__).resolve().parents[1]
    if "__file__" in globals()
    else Path("..").resolve()
)


def read_lines(path: str | Path) -> list[str]:
    """Return the lines of a UTF-8 text file, plain or .gz.

    A line ends at a line feed and nowhere else; a carriage return before it and a byte-
    order mark at the start of the file are dropped. ValueError names the file and the
    line that is not UTF-8, or the archive that is broken.
    """
    path = Path(path)
    try:
        data = (
            gzip.decompress(path.read_bytes())
            if path.suffix == ".gz"
            else path.read_bytes()
        )
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is not a whole gzip file: {error}") from error
    return decode_lines(data, path)


def decode_lines(data: bytes, origin: str | Path) -> list[str]:
    """Return the lines of UTF-8 bytes; `origin` is what an error names. See `read_lines`."""
    rows = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if rows[-1] == b"":  # what follows the last line feed is no line
        rows.pop()
    lines = []
    for number, row in enumerate(rows, 1):
        try:
            lines.append(row.removesuffix(b"\r").decode("utf-8"))
        except UnicodeDecodeError as error:
            byte = row[error.start]
            raise ValueError(
                f"{origin}, line {number}: byte 0x{byte:02x} is not UTF-8"
            ) from error
    return lines


def visible(line: str) -> bool:
    """Whether a line holds a character one can see, neither space nor control."""
    return any(
        unicodedata.category(char) not in ("Zs", "Zl", "Zp", "Cc", "Cf")
        for char in line
    )


def read_pairs(
    source: str | Path, target: str | Path
) -> tuple[list[tuple[str, str]], int]:
    """Return the (source, target) lines of two files, and how many pairs were dropped.

    A pair with an empty side is dropped as a pair. ValueError when the files differ in
    length.
    """
    left, right = read_lines(source), read_lines(target)
    if len(left) != len(right):
        counts = f"{source} has {len(left)} lines, {target} has {len(right)}"
        raise ValueError(f"{counts}: line k of one must translate line k of the other")
    pairs = [pair for pair in zip(left, right, strict=True) if all(map(visible, pair))]
    return pairs, len(left) - len(pairs)


def known_corpora() -> dict[str, dict]:
    """Return data/corpora.json: addresses, sizes and SHA-256 of known corpora."""
    return json.loads((ROOT / "data/corpora.json").read_text(encoding="utf-8"))


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def mirrored(corpus: str, name: str, wanted: str, mirror: Path) -> Path | None:
    """Return the file `name` of a mirror or None; ValueError for a wrong checksum."""
    for path in (mirror / corpus / name, mirror / name):
        if path.is_file():
            found = sha256(path)
            if found != wanted:
                raise ValueError(
                    f"{path} has SHA-256 {found}, but {corpus} wants {wanted}"
                )
            return path
    return None


def fetch_file(
    corpus: str,
    name: str,
    folder: str | Path | None = None,
    mirror: str | Path | None = None,
) -> Path:
    """Return the path of one file of a known corpus, checked against its SHA-256.

    Tried in turn: the folder `mirror` (or $TRANSFORMER_MIRROR), the cache `folder`
    (data/cache), and each address. ConnectionError names them all when none has the
    file.
    """
    entry = known_corpora()[corpus]
    wanted = entry["files"][name]["sha256"]
    mirror = mirror or os.environ.get("TRANSFORMER_MIRROR")
    found = mirrored(corpus, name, wanted, Path(mirror)) if mirror else None
    if found:
        return found
    import pooch

    folder = Path(folder or ROOT / "data/cache") / corpus
    advice = "put it in a folder, and name that by `mirror` or TRANSFORMER_MIRROR"
    failures = [f"{name} of {corpus} could not be fetched; {advice}"]
    for address in entry["addresses"]:
        url = address + name
        try:
            path = pooch.retrieve(
                url, f"sha256:{wanted}", name, folder, progressbar=True
            )
            return Path(path)
        # No network, no such page, another checksum.
        except (OSError, ValueError) as error:
            failures.append(f"{url}: {error}")
    raise ConnectionError("\n".join(failures))


Files = dict[str, tuple[Path, ...]]


def fetch_known(
    corpus: str,
    languages: Sequence[str],
    test: str | None = None,
    folder: str | Path | None = None,
    mirror: str | Path | None = None,
) -> Files:
    """Return {split: (source file, target file)} of a corpus of data/corpora.json."""
    entry = known_corpora()[corpus]
    test = test or next(iter(entry["tests"]))
    for kind, asked, known in (
        *(("language", language, entry["languages"]) for language in languages),
        ("test set", test, entry["tests"]),
    ):
        if asked not in known:
            raise ValueError(
                f"{corpus} has no {kind} {asked!r}; it has: {', '.join(known)}"
            )
    stems = {"train": entry["train"], "dev": entry["dev"], "test": entry["tests"][test]}
    return {
        split: tuple(
            fetch_file(corpus, f"{stem}.{x}.gz", folder, mirror) for x in languages
        )
        for split, stem in stems.items()
    }


def find_own(folder: Path, languages: Sequence[str], test: str | None = None) -> Files:
    """Return {split: (source file, target file)} of the user's folder."""

    def find(name: str) -> Path:
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return path
        raise FileNotFoundError(f"{folder} holds neither {name} nor {name}.gz")

    stems = {"train": "train", "dev": "dev", "test": test or "test"}
    return {
        split: tuple(find(f"{stem}.{x}") for x in languages)
        for split, stem in stems.items()
    }


def fetch(
    spec: str,
    source: str = "en",
    target: str = "de",
    test: str | None = None,
    folder: str | Path | None = None,
    mirror: str | Path | None = None,
) -> Files:
    """Return {split: (source file, target file)}, downloaded where need be.

    `spec` is "multi30k", "folder:PATH" or "grammar", which needs no files and gives {}.
    `test` names another test set than the first; `folder` is the cache, `mirror` is
    looked in before. ValueError for an unknown corpus, language or test set.
    """
    if source == target:
        raise ValueError(f"source and target are both {source!r}")
    if spec.startswith("folder:"):
        own = Path(spec.removeprefix("folder:")).expanduser()
        return find_own(own, (source, target), test)
    if spec in known_corpora():
        return fetch_known(spec, (source, target), test, folder, mirror)
    if spec != "grammar":
        choice = ", ".join(["grammar", *known_corpora(), "folder:PATH"])
        raise ValueError(f"no corpus {spec!r}; there are: {choice}")
    if {source, target} != {"en", "de"} or test not in (None, "test"):
        raise ValueError(
            f"grammar has en, de and one test set, not {source}, {target}, {test}"
        )
    return {}


GRAMMAR_SIZES = {"train": 20_000, "dev": 500, "test": 1_000}


@dataclass(frozen=True)
class Corpus:
    """Three lists of (source, target) sentences, and what identifies them."""

    name: str
    source_language: str
    target_language: str
    train: list[tuple[str, str]]
    dev: list[tuple[str, str]]
    test: list[tuple[str, str]]
    checksum: str  # SHA-256 of all the text above
    dropped: dict[str, int]  # pairs with an empty side, by split

    def training_text(self) -> list[str]:
        """Return what a vocabulary may be learned from: both sides of `train`."""
        return [line for pair in self.train for line in pair]


def read_grammar(split: str, source: str) -> tuple[list[tuple[str, str]], int]:
    """Return one split of the embedded corpus, and 0, for none is ever dropped."""
    from transformer.grammar import generate

    pairs = [(x.english, x.german) for x in generate(split, GRAMMAR_SIZES[split])]
    return (
        pairs if source == "en" else [(german, english) for english, german in pairs]
    ), 0


def load_corpus(
    spec: str = "grammar",
    source: str = "en",
    target: str = "de",
    test: str | None = None,
    folder: str | Path | None = None,
    mirror: str | Path | None = None,
) -> Corpus:
    """Read a corpus; arguments as for `fetch`. ValueError for an empty split."""
    files = fetch(spec, source, target, test, folder, mirror)
    splits, dropped, digest = {}, {}, hashlib.sha256()
    for split in ("train", "dev", "test"):
        read = read_pairs(*files[split]) if files else read_grammar(split, source)
        splits[split], dropped[split] = read
        if not splits[split]:
            raise ValueError(f"{split} of {spec} holds no sentence pair")
        for pair in splits[split]:
            digest.update(("\t".join(pair) + "\n").encode("utf-8"))
    return Corpus(
        spec, source, target, **splits, checksum=digest.hexdigest(), dropped=dropped
    )
