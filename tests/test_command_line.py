"""The command line: the whole way on a tiny corpus, resumption, and what it says to bad input."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from transformer.__main__ import main, parse_changes, run_name
from transformer.grammar import generate
from transformer.results import ROOT

TINY = ["d_model=16", "d_ff=16", "layers=1", "steps=6", "checkpoint_every=2", "max_tokens=128"]

# Bits are promised for a fixed number of threads; the tests themselves run on one.
ONE_THREAD = os.environ | {"OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A folder of forty pairs, as a user would bring one."""
    folder = tmp_path_factory.mktemp("corpus") / "text"
    folder.mkdir()
    for split, count in {"train": 40, "dev": 5, "test": 5}.items():
        examples = generate(split, count)
        for suffix, side in {"en": "english", "de": "german"}.items():
            lines = "".join(getattr(x, side) + "\n" for x in examples)
            (folder / f"{split}.{suffix}").write_text(lines, encoding="utf-8")
    return folder


def shape(text, *changes):
    words = [word for change in [*TINY, *changes] for word in ("--set", change)]
    return ["--corpus", f"folder:{text}", "--vocab-size", "120", *words]


@pytest.fixture(scope="module")
def run(text, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "run"
    assert main(["prepare", "--run", str(folder), *shape(text)]) == 0
    for word in ("train", "average", "score"):
        assert main([word, "--run", str(folder)]) == 0
    return folder


def test_the_whole_way_ends_in_a_result_file(run):
    result = json.loads((run / "results/text-en-de.json").read_text(encoding="utf-8"))
    assert result["steps"] == 6 and result["average"] == 3
    assert result["corpus"]["spec"] == "folder:text"
    assert result["model"]["d_model"] == 16 and result["training"]["max_tokens"] == 128
    assert result["scores"]["averaged"]["bleu"]["signature"].startswith("nrefs:1")
    assert result["flops"] > 0 and result["curve"][-1]["step"] == 6
    assert len((run / "translations.txt").read_text(encoding="utf-8").splitlines()) == 5


def test_translate_keeps_line_count_and_empty_lines(run, tmp_path, capfdbinary):
    (tmp_path / "in.txt").write_bytes(b"The dog sleeps.\n\nI sleep.\n")
    assert main(["translate", "--run", str(run), str(tmp_path / "in.txt")]) == 0
    lines = capfdbinary.readouterr().out.split(b"\n")
    assert len(lines) == 4 and lines[1] == b"" and lines[3] == b""


def test_translate_of_nothing_is_nothing(run, tmp_path, capfdbinary):
    (tmp_path / "empty.txt").write_bytes(b"")
    assert main(["translate", "--run", str(run), str(tmp_path / "empty.txt")]) == 0
    assert capfdbinary.readouterr().out == b""


@pytest.mark.parametrize(
    ("words", "culprit"),
    [
        (["prepare", "--corpus", "wmt99"], "wmt99"),
        (["prepare", "--corpus", "folder:/no/such/place"], "/no/such/place"),
        (["prepare", "--corpus", "grammar", "--target", "xx"], "xx"),
        (["prepare", "--preset", "huge"], "huge"),
        (["prepare", "--set", "colour=red"], "colour"),
        (["prepare", "--set", "heads=7"], "heads 7"),
        (["prepare", "--set", "warmup_steps=0"], "warmup_steps"),
        (["train", "--run", "no-such-run"], "no-such-run"),
        (["average", "--run", "no-such-run"], "no-such-run"),
        (["score", "--run", "no-such-run"], "no-such-run"),
        (["translate", "--run", "no-such-run"], "no-such-run"),
        (["translate", "--run", "no-such-run", "no-such-file"], "no-such"),
    ],
)
def test_bad_input_is_named_and_ends_with_code_2(words, culprit, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b""), encoding="utf-8"))
    if words[0] == "prepare":
        words = [*words, "--run", str(tmp_path / "run")]
    assert main(words) == 2
    message = capsys.readouterr().err
    assert culprit in message and "Traceback" not in message


def test_preparing_over_a_run_is_refused(run, text, capsys):
    assert main(["prepare", "--run", str(run), *shape(text)]) == 2
    assert "holds a run already" in capsys.readouterr().err


def test_a_changed_corpus_is_noticed(text, tmp_path, capsys):
    other = tmp_path / "text"
    other.mkdir()
    for path in text.iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    assert main(["prepare", "--run", str(tmp_path / "run"), *shape(other)]) == 0
    path = other / "test.de"
    path.write_text(path.read_text(encoding="utf-8").replace(".", "!"), encoding="utf-8")
    assert main(["train", "--run", str(tmp_path / "run")]) == 2
    assert "has changed" in capsys.readouterr().err


def test_set_reads_numbers_words_and_the_right_home():
    model, training = parse_changes(["dropout=0.3", "norm=pre", "steps=7", "tied=false"])
    assert model == {"dropout": 0.3, "norm": "pre", "tied": False} and training == {"steps": 7}


def test_run_names_hold_no_path():
    assert run_name("multi30k", "en", "de") == "multi30k-en-de"
    assert run_name("folder:/some/where/mine/", "en", "fr") == "mine-en-fr"


def test_a_killed_run_goes_on_to_the_same_weights(text, run, tmp_path):
    """kill -9 in mid-run loses at most what came after the last checkpoint."""
    folder = tmp_path / "run"
    changes = ("steps=400", "checkpoint_every=20", "keep=3")
    straight = tmp_path / "straight"
    for place in (folder, straight):
        assert main(["prepare", "--run", str(place), *shape(text, *changes)]) == 0
    command = [sys.executable, "-m", "transformer", "train", "--run", str(folder)]
    killed = subprocess.Popen(command, cwd=ROOT, env=ONE_THREAD, stderr=subprocess.DEVNULL)
    limit = time.monotonic() + 60
    while not list((folder / "checkpoints").glob("step-*")) and time.monotonic() < limit:
        time.sleep(0.05)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert main(["train", "--run", str(folder)]) == 0
    assert main(["train", "--run", str(straight)]) == 0
    last = "checkpoints/step-00000400/model.safetensors"
    assert (folder / last).read_bytes() == (straight / last).read_bytes()


def test_an_interrupted_train_says_how_to_go_on(text, tmp_path):
    folder = tmp_path / "run"
    assert main(["prepare", "--run", str(folder), *shape(text, "steps=100000")]) == 0
    command = [sys.executable, "-m", "transformer", "train", "--run", str(folder)]
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, cwd=ROOT, env=ONE_THREAD, **quiet)
    limit = time.monotonic() + 60
    while not list((folder / "checkpoints").glob("step-*")) and time.monotonic() < limit:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=60)[0].decode()
    assert process.returncode == 0 and "resumes from" in output


@pytest.fixture
def copy(run, tmp_path):
    """A trained, averaged and scored run of one's own to spoil."""
    return shutil.copytree(run, tmp_path / "copy")


@pytest.mark.parametrize(
    "change",
    ["heads=abc", "heads=null", "layers=2.5", "layers=true", "dropout=abc", "steps=1e3", "tied=no",
     "seed=1.5", "scale=NaN", "scale=-1", "beta2=5", "eps=-1", "minutes=NaN", "vocab_size=5",
     "pad_id=7"],
)  # fmt: skip
def test_a_setting_of_the_wrong_type_or_range_is_named(change, text, tmp_path, capsys):
    words = [*shape(text), "--set", change]
    assert main(["prepare", "--run", str(tmp_path / "run"), *words]) == 2
    assert change.split("=")[0] in capsys.readouterr().err


def test_a_failed_prepare_leaves_the_run_as_it_was(text, tmp_path, capsys):
    folder = tmp_path / "run"
    assert main(["prepare", "--run", str(folder), *shape(text)]) == 0
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    words = [*shape(text), "--vocab-size", "100", "--preset", "nope"]
    assert main(["prepare", "--run", str(folder), *words]) == 2
    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}


def test_settings_edited_after_training_began_are_refused(copy, capsys):
    path = copy / "config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings["training"]["warmup_steps"] = 7
    path.write_text(json.dumps(settings), encoding="utf-8")
    assert main(["train", "--run", str(copy), "--steps", "8"]) == 2
    assert "warmup_steps" in capsys.readouterr().err


def test_steps_on_the_command_line_hold_for_one_call(copy, capsys):
    assert main(["train", "--run", str(copy), "--steps", "3"]) == 0
    assert "at step 6 already" in capsys.readouterr().out
    assert (copy / "averaged.safetensors").exists()
    assert main(["train", "--run", str(copy), "--steps", "8"]) == 0
    settings = json.loads((copy / "config.json").read_text(encoding="utf-8"))
    assert settings["training"]["steps"] == 6


def test_more_training_makes_an_average_stale_and_score_asks_for_a_new_one(copy, capsys):
    assert main(["train", "--run", str(copy), "--steps", "8"]) == 0
    assert not (copy / "averaged.safetensors").exists()
    assert main(["score", "--run", str(copy)]) == 2
    assert "holds no average yet" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["", "{", "[]", "{}"])
@pytest.mark.parametrize("word", ["train", "average", "score", "translate"])
def test_a_broken_configuration_is_named(copy, word, content, capsys, monkeypatch):
    (copy / "config.json").write_text(content, encoding="utf-8")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a"), encoding="utf-8"))
    assert main([word, "--run", str(copy)]) == 2
    assert "config.json" in capsys.readouterr().err


def test_another_tokenizer_is_noticed_before_training(copy, text, tmp_path, capsys):
    assert main(["prepare", "--run", str(tmp_path / "other"), *shape(text)[:2],
                 "--vocab-size", "100"]) == 0  # fmt: skip
    shutil.copy(tmp_path / "other/tokenizer.model", copy)
    assert main(["train", "--run", str(copy), "--steps", "8"]) == 2
    assert "tokenizer.model" in capsys.readouterr().err


def test_translate_names_the_line_that_is_not_utf8(run, tmp_path, capsys):
    (tmp_path / "in.txt").write_bytes(b"good\nbad \xff\n")
    assert main(["translate", "--run", str(run), str(tmp_path / "in.txt")]) == 2
    assert "in.txt, line 2" in capsys.readouterr().err


def test_an_alpha_beyond_floating_point_is_refused(run, tmp_path, capsys):
    (tmp_path / "in.txt").write_bytes(b"good\n")
    command = ["translate", "--run", str(run), "--alpha", "1000", str(tmp_path / "in.txt")]
    assert main(command) == 2
    assert "alpha" in capsys.readouterr().err


def test_storing_a_folder_without_a_result_is_refused(tmp_path, capsys):
    assert main(["tables", "--store", str(tmp_path)]) == 2
    assert "holds no result" in capsys.readouterr().err


def test_reproduce_refuses_to_go_on_with_another_job(copy, text, capsys):
    for words in (["--corpus", "grammar"], [*shape(text)], ["--corpus", f"folder:{text}",
                  "--target", "en", "--source", "de"]):  # fmt: skip
        assert main(["reproduce", "--run", str(copy), *words]) == 2
        assert "was begun with" in capsys.readouterr().err


def test_the_embedded_corpus_trains_in_the_other_direction_too(tmp_path, monkeypatch):
    sizes = {"train": 40, "dev": 5, "test": 5}
    monkeypatch.setattr("transformer.corpora.GRAMMAR_SIZES", sizes)
    words = [word for change in TINY for word in ("--set", change)]
    direction = ["--source", "de", "--target", "en", "--vocab-size", "120"]
    assert main(["prepare", "--run", str(tmp_path), *direction, *words]) == 0
    for word in ("train", "average", "score"):
        assert main([word, "--run", str(tmp_path)]) == 0
    result = json.loads((tmp_path / "results/grammar-de-en.json").read_text(encoding="utf-8"))
    assert "word_by_word" not in result["scores"]
