"""Store how long the sentences of Multi30k are, in pieces: what chapter 5.1 measures padding on.

    python tests/benchmarks/lengths.py [--mirror FOLDER] [--vocab-size 4000]

Writes data/results/lengths/multi30k-en-de.json: the corpus and its checksum, the vocabulary's
size, the version of sentencepiece, and [source length, target length, pairs] with EOS counted.
"""

import argparse
import json
import os
from collections import Counter
from pathlib import Path

import sentencepiece

from transformer.corpora import ROOT, load_corpus
from transformer.tokens import Tokenizer


def measure(mirror: Path | None, vocab_size: int) -> dict:
    corpus = load_corpus("multi30k", "en", "de", mirror=mirror)
    tokenizer = Tokenizer.train(corpus.training_text(), vocab_size)
    lengths = Counter(
        (len(tokenizer.encode(source)) + 1, len(tokenizer.encode(target)) + 1)
        for source, target in corpus.train
    )
    return {
        "corpus": corpus.name,
        "languages": [corpus.source_language, corpus.target_language],
        "split": "train",
        "checksum": corpus.checksum,
        "vocab_size": vocab_size,
        "sentencepiece": sentencepiece.__version__,
        "lengths": [[*size, count] for size, count in sorted(lengths.items())],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--mirror", type=Path, help="a folder that holds the files of Multi30k")
    parser.add_argument("--vocab-size", type=int, default=4000)
    options = parser.parse_args()
    result = measure(options.mirror, options.vocab_size)
    path = ROOT / "data/results/lengths/multi30k-en-de.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(result) + "\n", encoding="utf-8")
    os.replace(temporary, path)
    print(f"wrote {path}: {sum(n for *_, n in result['lengths'])} pairs")


if __name__ == "__main__":
    main()
