# Written from chapters/using-it.ipynb by chapters/_book/export.py. Edit the chapter.
"""The command line: python -m transformer fetch | prepare | train | ... (chapter using-it)."""

__all__ = [
    "COMMANDS",
    "RECIPES",
    "RUNS",
    "Recipe",
    "add_check",
    "add_corpus",
    "add_file",
    "add_last",
    "add_limits",
    "add_new_run",
    "add_run",
    "add_search",
    "add_shape",
    "add_tables",
    "average_run",
    "best_device",
    "check_goes_on",
    "corpus_facts",
    "curve",
    "describe",
    "describe_run",
    "dev_scores",
    "export",
    "fetch_corpus",
    "main",
    "parse_changes",
    "prepare",
    "progress",
    "read_settings",
    "recipe_for",
    "render_book",
    "reproduce",
    "run_batches",
    "run_corpus",
    "run_name",
    "run_python",
    "samples",
    "score_run",
    "scores_of",
    "tables",
    "train_run",
    "translate_run",
    "word_by_word_bleu",
    "write_json",
]

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import torch

from transformer.batches import Batches
from transformer.checkpoints import (
    average_checkpoints,
    last_checkpoints,
    list_checkpoints,
    load_checkpoint,
    read_json,
    save_model,
    write_atomically,
)
from transformer.corpora import ROOT, Corpus, decode_lines, fetch, load_corpus, read_lines
from transformer.cost import training_flops
from transformer.model import Transformer, TransformerConfig, count_parameters
from transformer.results import environment, load_results, our_table2, readme_table, write_result
from transformer.scoring import bleu, evaluate_loss, moses_bleu
from transformer.tokens import Tokenizer
from transformer.training import TrainingConfig, read_log, train
from transformer.translator import Translator

RUNS = ROOT / "data/runs"


@dataclass(frozen=True)
class Recipe:
    """What a corpus is trained with, and the BLEU below which its reproduction has failed."""

    preset: str
    vocab_size: int
    model: dict = field(default_factory=dict)
    training: dict = field(default_factory=dict)
    average: int = 5
    floor: float = 0.0


RECIPES = {
    "grammar": Recipe(
        "tiny",
        vocab_size=1000,
        training={"max_tokens": 2048, "warmup_steps": 400, "scale": 0.9, "steps": 2500,
                  "checkpoint_every": 100, "evaluate_every": 100, "log_every": 100},
        floor=90.0,
    ),
    "multi30k": Recipe(
        "small",
        vocab_size=4000,
        model={"dropout": 0.2},
        training={"max_tokens": 2048, "warmup_steps": 1000, "scale": 1.43, "steps": 5300,
                  "checkpoint_every": 250, "evaluate_every": 250, "log_every": 250, "keep": 10},
        average=10,
        floor=30.0,
    ),
}
RECIPES["folder"] = Recipe("small", RECIPES["multi30k"].vocab_size, {"dropout": 0.2},
                           RECIPES["multi30k"].training, average=10)


def recipe_for(corpus: str) -> Recipe:
    return RECIPES[corpus.split(":")[0]]


def run_name(corpus: str, source: str, target: str) -> str:
    """multi30k-en-de; a folder is called by its last name."""
    name = Path(corpus.removeprefix("folder:")).resolve().name if ":" in corpus else corpus
    return f"{name}-{source}-{target}"


def parse_changes(changes: Iterable[str]) -> tuple[dict, dict]:
    """Sort FIELD=VALUE into changes of the model and of training. ValueError for an unknown one."""
    kinds = [{f.name for f in fields(kind)} for kind in (TransformerConfig, TrainingConfig)]
    sorted_out: tuple[dict, dict] = ({}, {})
    for ids in ("vocab_size", "pad_id", "bos_id", "eos_id"):
        kinds[0].remove(ids)  # the vocabulary decides these: --vocab-size
    for change in changes:
        name, sign, text = change.partition("=")
        homes = [home for home, names in zip(sorted_out, kinds, strict=True) if name in names]
        if not sign or not homes:
            known = ", ".join(sorted(kinds[0] | kinds[1]))
            raise ValueError(f"--set wants FIELD=VALUE, not {change!r}; the fields: {known}")
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            value = text
        homes[0][name] = value
    return sorted_out


def prepare(options: argparse.Namespace) -> Path:
    """Read the corpus, learn the vocabulary, and write the run's configuration."""
    spec, source, target = options.corpus, options.source, options.target
    print(f"reading {spec}", flush=True)
    corpus = load_corpus(spec, source, target, mirror=options.mirror)
    run = Path(options.run or RUNS / run_name(spec, source, target))
    if list_checkpoints(run):
        raise ValueError(f"{run} holds a run already: `train` resumes it, or name another --run")
    recipe = recipe_for(spec)
    model_changes, training_changes = parse_changes(options.set)
    training = TrainingConfig(**{**recipe.training, **training_changes})
    size = options.vocab_size or recipe.vocab_size
    print(f"{corpus.name}: {describe(corpus)}; learning {size:,} word-pieces", flush=True)
    try:
        tokenizer = Tokenizer.train(corpus.training_text(), size, seed=training.seed)
    except ValueError as error:
        raise ValueError(f"{error}; choose another by --vocab-size") from error
    ids = {name: getattr(tokenizer, name) for name in ("vocab_size", "pad_id", "bos_id", "eos_id")}
    changes = {**recipe.model, **model_changes, **ids}
    model = TransformerConfig.preset(options.preset or recipe.preset, **changes)
    settings = {
        "name": run_name(spec, source, target),
        "preset": options.preset or recipe.preset,
        "average": recipe.average,
        "corpus": corpus_facts(corpus, spec, options.mirror),
        "model": asdict(model),
        "training": asdict(training),
    }
    # Written last: what could not be prepared leaves an earlier run as it was.
    tokenizer.save(run / "tokenizer.model")
    write_json(run / "config.json", settings)
    return run


def describe(corpus: Corpus) -> str:
    sizes = {split: len(getattr(corpus, split)) for split in ("train", "dev", "test")}
    text = ", ".join(f"{count:,} pairs of {split}" for split, count in sizes.items())
    lost = sum(corpus.dropped.values())
    return text + (f", {lost} with an empty side left out" if lost else "")


def corpus_facts(corpus: Corpus, spec: str, mirror: str | None) -> dict:
    """What config.json and the result keep of a corpus."""
    splits = ("train", "dev", "test")
    return {
        "spec": spec if ":" not in spec else f"folder:{Path(spec[7:]).expanduser().resolve()}",
        "source": corpus.source_language,
        "target": corpus.target_language,
        "test": "test2016" if spec == "multi30k" else "test",
        "mirror": mirror and str(Path(mirror).resolve()),
        "pairs": {split: len(getattr(corpus, split)) for split in splits},
        "dropped": corpus.dropped,
        "checksum": corpus.checksum,
    }


def write_json(path: Path, value: dict) -> None:
    write_atomically(path, json.dumps(value, indent=1, ensure_ascii=False).encode("utf-8"))


def read_settings(run: Path) -> dict:
    """The run's config.json. FileNotFoundError says what to do without one."""
    path = Path(run) / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there: `python -m transformer prepare` writes it")
    settings = read_json(path)
    missing = {"name", "corpus", "model", "training", "average"} - settings.keys()
    if missing:
        raise ValueError(f"{path} lacks {', '.join(sorted(missing))}")
    return settings


def run_corpus(run: Path) -> Corpus:
    """The corpus a run was prepared with. ValueError when its text is not the same any more."""
    facts = read_settings(run)["corpus"]
    corpus = load_corpus(
        facts["spec"], facts["source"], facts["target"], mirror=facts["mirror"]
    )
    if corpus.checksum != facts["checksum"]:
        raise ValueError(f"the text of {facts['spec']} has changed since {run} was prepared")
    return corpus


def run_batches(run: Path, split: str, corpus: Corpus) -> Batches:
    """One split as batches; a training pair too long for the budget is left out and counted."""
    settings, tokenizer = read_settings(run), Tokenizer.load(run / "tokenizer.model")
    if tokenizer.vocab_size != settings["model"]["vocab_size"]:
        raise ValueError(f"{run / 'tokenizer.model'} is not the one {run} was prepared with")
    pairs = [
        (tokenizer.encode(source), tokenizer.encode(target))
        for source, target in progress(getattr(corpus, split), f"encoding {split}")
    ]
    budget = settings["training"]["max_tokens"]
    ids = (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id)
    seed = settings["training"]["seed"]
    batches = Batches(pairs, budget, *ids, seed=seed, max_length=min(budget, 256))
    if batches.dropped:
        print(f"{split}: {batches.dropped} pairs of more than {min(budget, 256)} pieces left out")
    return batches


def progress(items: list, what: str) -> Iterable:
    """A bar, where someone is watching."""
    from tqdm import tqdm

    return tqdm(items, desc=what, leave=False, disable=not sys.stderr.isatty())


def best_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def train_run(options: argparse.Namespace) -> bool:
    """Train a run, or resume it where it was stopped.

    Returns whether it came to its end.
    """
    run = Path(options.run)
    settings = read_settings(run)
    limits = {name: getattr(options, name) for name in ("steps", "minutes")}
    given = {name: value for name, value in limits.items() if value is not None}
    training = TrainingConfig(**{**settings["training"], **given})
    corpus = run_corpus(run)
    batches, dev = (run_batches(run, split, corpus) for split in ("train", "dev"))
    generator = torch.Generator().manual_seed(training.seed)
    model = Transformer(TransformerConfig(**settings["model"]), generator).to(best_device())
    print(
        f"{count_parameters(model) / 1e6:.1f} million parameters on {best_device()}, "
        f"{len(batches):,} batches an epoch, {batches.padding:.0%} of them padding",
        flush=True,
    )
    before = list_checkpoints(run)
    summary = train(model, batches, training, run, lambda m: dev_scores(m, dev))
    if before == list_checkpoints(run):
        print(f"nothing to train: {run} is at step {summary['step']} already")
    else:  # an average of older weights is not this run's any more
        for name in ("averaged.safetensors", "averaged.json"):
            (run / name).unlink(missing_ok=True)
    write_json(run / "config.json", settings)  # --steps and --minutes hold for one call
    return not summary["stopped"].startswith("stopped")


def dev_scores(model: Transformer, dev: Batches) -> dict:
    """What training logs of the development set."""
    scores = evaluate_loss(model, dev.epoch(0))
    return {f"dev_{name}": scores[name] for name in ("nll", "perplexity", "token_accuracy")}


def average_run(options: argparse.Namespace) -> None:
    """Average the last checkpoints of a run into averaged.safetensors."""
    run = Path(options.run)
    wanted = read_settings(run)["average"] if options.last is None else options.last
    if wanted < 1:
        raise ValueError(f"--last must be at least 1, not {wanted}")
    paths = last_checkpoints(run, min(wanted, max(len(list_checkpoints(run)), 1)))
    save_model(run / "averaged.safetensors", average_checkpoints(paths))
    write_json(run / "averaged.json", {"checkpoints": [path.name for path in paths]})
    print(f"averaged {len(paths)} checkpoints, {paths[0].name} to {paths[-1].name}")


def translate_run(options: argparse.Namespace) -> None:
    """Translate a file, or standard input, to standard output, a line each."""
    if options.file:
        lines = read_lines(options.file)
    else:
        lines = decode_lines(sys.stdin.buffer.read(), "standard input")
    translator = Translator.load(options.run)
    bar = sys.stderr.isatty()
    for line in translator.translate(lines, options.beam, options.alpha, progress=bar):
        sys.stdout.buffer.write(line.encode("utf-8") + b"\n")


def scores_of(translator: Translator, corpus: Corpus, dev: Batches, options) -> tuple[dict, list]:
    """Scores of a model on the test set and the development set, and its translations."""
    sources, references = (list(side) for side in zip(*corpus.test, strict=True))
    found = translator.translate(sources, options.beam, options.alpha, progress=True)
    scores = evaluate_loss(translator.model, dev.epoch(0))
    scores["bleu"] = asdict(bleu(found, references))
    scores["moses_bleu"] = asdict(moses_bleu(found, references, corpus.target_language))
    return scores, found


def score_run(options: argparse.Namespace) -> dict:
    """Translate and score the test set, and write the run's result file."""
    run = Path(options.run)
    last = last_checkpoints(run, 1)[0]
    if not (run / "averaged.json").is_file():
        raise ValueError(f"{run} holds no average yet: `python -m transformer average` makes it")
    settings, corpus = read_settings(run), run_corpus(run)
    dev, translator = run_batches(run, "dev", corpus), Translator.load(run)
    averaged, found = scores_of(translator, corpus, dev, options)
    state = load_checkpoint(last, translator.model)
    scores = {"last": scores_of(translator, corpus, dev, options)[0], "averaged": averaged}
    text = "".join(line + "\n" for line in found)
    write_atomically(run / "translations.txt", text.encode("utf-8"))
    result = describe_run(run, settings, state) | {
        "decoding": {"beam": options.beam, "alpha": options.alpha, "max_extra": 50},
        "scores": scores,
        "samples": samples(corpus, found),
    }
    if (corpus.name, corpus.source_language) == ("grammar", "en"):
        baseline = word_by_word_bleu(settings["corpus"]["pairs"]["test"])
        result["scores"]["word_by_word"] = {"bleu": asdict(baseline)}
    write_result(run / "results" / f"{settings['name']}.json", result)
    for kind, score in scores.items():
        print(f"{kind:12} sacreBLEU {score['bleu']['value']:.1f} ({score['bleu']['signature']})")
    return result


def describe_run(run: Path, settings: dict, state: dict) -> dict:
    """What a result says of the run itself: settings, cost, machine, learning curve."""
    config = TransformerConfig(**settings["model"])
    with torch.device("meta"):
        parameters = count_parameters(Transformer(config))
    corpus = {key: value for key, value in settings["corpus"].items() if key != "mirror"}
    if ":" in corpus["spec"]:
        corpus["spec"] = "folder:" + Path(corpus["spec"][7:]).name
    return {
        "name": settings["name"],
        "preset": settings["preset"],
        "corpus": corpus,
        "model": settings["model"],
        "training": settings["training"],
        "parameters": parameters,
        "average": len(read_json(run / "averaged.json")["checkpoints"]),
        "steps": state["step"],
        "epochs": state["epoch"],
        "source_tokens": state["source_tokens"],
        "target_tokens": state["tokens"],
        "seconds": round(state["seconds"], 1),
        "flops": training_flops(config, state["source_tokens"], state["tokens"]),
        **environment(best_device()),
        "curve": curve(run / "log.jsonl"),
    }


def curve(path: Path) -> list[dict]:
    """The learning curve: every line of the log, rounded for reading."""
    names = {"step": "step", "tokens": "tokens", "seconds": "seconds", "loss": "train_loss",
             "dev_nll": "dev_loss", "dev_perplexity": "dev_perplexity",
             "dev_token_accuracy": "dev_token_accuracy"}
    return [
        {new: round(entry[old], 4) for old, new in names.items() if old in entry}
        for entry in read_log(path)
    ]


def samples(corpus: Corpus, found: list[str], count: int = 10) -> list[dict]:
    """Some translations of the test set, evenly spaced, none picked by hand."""
    step = max(len(found) // count, 1)
    return [
        {"source": corpus.test[i][0], "reference": corpus.test[i][1], "translation": found[i]}
        for i in range(0, len(found), step)
    ][:count]


def word_by_word_bleu(count: int):
    """What a dictionary alone scores on the embedded corpus, English to German."""
    from transformer.grammar import generate, word_by_word

    examples = generate("test", count)
    return bleu([word_by_word(x) for x in examples], [x.german for x in examples])


def render_book(run: Path) -> Path:
    """Execute a copy of the chapters that read results, with this run's, and render it."""
    run = run.resolve()
    book = run / "book"
    shutil.rmtree(book, ignore_errors=True)
    skip = shutil.ignore_patterns("__pycache__", ".*")
    book.mkdir()
    for name in ("chapters", "transformer"):
        shutil.copytree(ROOT / name, book / name, ignore=skip)
    for path in [*ROOT.glob("*.yml"), *ROOT.glob("*.md")]:
        shutil.copy(path, book)
    affected = [
        path.stem
        for path in sorted((book / "chapters").glob("*.ipynb"))
        if "load_results(" in path.read_text(encoding="utf-8")
    ]
    here = os.environ | {"TRANSFORMER_RESULTS": str(run / "results")}
    run_python("the chapters", book / "chapters/_book/execute.py", *affected, env=here)
    jupyter_book = "from jupyter_book.cli.main import main; main()"
    run_python("the book", "-c", jupyter_book, "build", "--all", "-q", book, env=here)
    return book / "_build/html/index.html"


def run_python(what: str, *arguments, env: dict) -> None:
    """Run this Python with arguments; RuntimeError with what it said when it fails."""
    command = [sys.executable, *map(str, arguments)]
    print(f"rendering {what} with this run", flush=True)
    done = subprocess.run(command, env=env, cwd=ROOT)
    if done.returncode:
        raise RuntimeError(f"rendering {what} failed with exit code {done.returncode}")


def check_goes_on(run: Path, options: argparse.Namespace) -> None:
    """ValueError when a run that would be resumed is not the one that is asked for."""
    facts = read_settings(run)["corpus"]
    asked = {"spec": options.corpus, "source": options.source, "target": options.target}
    if ":" in options.corpus:
        asked["spec"] = f"folder:{Path(options.corpus[7:]).expanduser().resolve()}"
    shape = [options.preset, options.vocab_size, *options.set]
    if any(facts[key] != value for key, value in asked.items()) or any(shape):
        began = f"{facts['spec']}, {facts['source']} to {facts['target']}"
        raise ValueError(f"{run} was begun with {began}: name another --run, or remove it")


def reproduce(options: argparse.Namespace) -> int:
    """Prepare, train, average, score and render the book, in one go.

    Returns 1 when the score is below the recipe's floor, 130 when training was stopped.
    """
    options.run = options.run or RUNS / run_name(options.corpus, options.source, options.target)
    run = Path(options.run)
    if list_checkpoints(run):
        check_goes_on(run, options)
    else:
        prepare(options)
    if not train_run(options):
        print("stopped; the same command goes on from here")
        return 130
    average_run(options)
    result = score_run(options)
    page = render_book(run)
    print(our_table2({result["name"]: result}).T.to_string(header=False))
    print(f"your book: {page}")
    reached, floor = result["scores"]["averaged"]["bleu"]["value"], recipe_for(options.corpus).floor
    if reached < floor:
        print(f"sacreBLEU {reached:.1f} is below the floor of {floor:.1f}", file=sys.stderr)
        return 1
    return 0


def tables(options: argparse.Namespace) -> None:
    """Print our rows of Table 2; on demand store a run as reference, or refresh the README."""
    for run in options.store:
        found = sorted(Path(run, "results").glob("*.json"))
        if not found:
            raise ValueError(f"{run} holds no result: `python -m transformer score` writes it")
        for path in found:
            result = json.loads(path.read_text(encoding="utf-8"))
            if result["corpus"]["spec"] != "grammar":
                result["samples"] = []  # sentences of others are not ours to hand on
            write_result(ROOT / "data/results" / path.name, result)
            print(f"stored data/results/{path.name}; now re-execute the chapters: make execute")
    if options.readme:
        path = ROOT / "README.md"
        text = path.read_text(encoding="utf-8")
        write_atomically(path, readme_table(text, load_results()).encode("utf-8"))
    print(our_table2().to_string(index=False))


def export(options: argparse.Namespace) -> int:
    """Write the package from the chapters, or check that it is what they say."""
    script = [sys.executable, str(ROOT / "chapters/_book/export.py")]
    return subprocess.run(script + ["--check"] * options.check).returncode


def fetch_corpus(options: argparse.Namespace) -> None:
    """Download a corpus, checksums verified."""
    files = fetch(options.corpus, options.source, options.target, mirror=options.mirror)
    for split, paths in files.items():
        print(split, *paths)
    if not files:
        print(f"{options.corpus} is generated: there is nothing to fetch")


def add_corpus(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--corpus", default="grammar", help="grammar, multi30k or folder:PATH")
    parser.add_argument("--source", default="en", help="source language")
    parser.add_argument("--target", default="de", help="target language")
    parser.add_argument("--mirror", help="a folder that already holds the corpus's files")


def add_shape(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--preset", help="a named model; the corpus's recipe when left out")
    parser.add_argument("--vocab-size", type=int, help="number of word-pieces")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE",
                        help="change a field of the model or of training; may be repeated")


def add_limits(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, help="stop after so many updates")
    parser.add_argument("--minutes", type=float, help="stop after so many minutes of training")


def add_search(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--beam", type=int, default=4, help="hypotheses kept (default 4)")
    parser.add_argument("--alpha", type=float, default=0.6, help="length penalty (default 0.6)")


def add_last(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--last", type=int, help="how many checkpoints to average")


def add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--run", type=Path, required=True, help="the run's folder")


def add_new_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--run", type=Path, help="the run's folder (default data/runs/NAME)")


def add_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", type=Path, help="standard input when left out")


def add_tables(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--readme", action="store_true", help="refresh the README's table")
    parser.add_argument("--store", action="append", default=[], metavar="RUN",
                        help="maintainers: make a run's result a reference")


def add_check(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--check", action="store_true", help="write nothing, fail on drift")


COMMANDS = {
    "fetch": (fetch_corpus, [add_corpus]),
    "prepare": (prepare, [add_corpus, add_new_run, add_shape]),
    "train": (train_run, [add_run, add_limits]),
    "average": (average_run, [add_run, add_last]),
    "translate": (translate_run, [add_run, add_search, add_file]),
    "score": (score_run, [add_run, add_search]),
    "reproduce": (
        reproduce,
        [add_corpus, add_new_run, add_shape, add_limits, add_search, add_last],
    ),
    "tables": (tables, [add_tables]),
    "export": (export, [add_check]),
}


def main(arguments: list[str] | None = None) -> int:
    """Run one command; bad input ends in one line that names the culprit, and exit code 2."""
    parser = argparse.ArgumentParser(prog="python -m transformer")
    words = parser.add_subparsers(dest="command", required=True)
    for word, (function, parts) in COMMANDS.items():
        about = function.__doc__.split("\n")[0]
        own = words.add_parser(word, help=about, description=about)
        for add in parts:
            add(own)
    options = parser.parse_args(arguments)
    try:
        answer = COMMANDS[options.command][0](options)
    except KeyboardInterrupt:
        print(f"{options.command}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # who reads our output has heard enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError, RuntimeError, FloatingPointError) as error:
        print(f"{options.command}: {error}", file=sys.stderr)
        return 2
    return answer if type(answer) is int else 0


if __name__ == "__main__" and "__file__" in globals():  # a notebook has no file
    sys.exit(main())
