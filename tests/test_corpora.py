"""Reading and fetching parallel text."""

import functools
import gzip
import hashlib
import http.server
import json
import os
import threading
from pathlib import Path

import pytest

from transformer import corpora
from transformer.corpora import fetch, fetch_file, load_corpus, read_lines, read_pairs

MULTI30K = Path(__file__).resolve().parents[2] / "shared/data/multi30k"
real_text = pytest.mark.skipif(not MULTI30K.is_dir(), reason=f"no real text at {MULTI30K}")


def write(path: Path, data: bytes | str) -> Path:
    path.write_bytes(data if isinstance(data, bytes) else data.encode("utf-8"))
    return path


def write_folder(folder: Path, splits=("train", "dev", "test"), languages=("en", "de")) -> Path:
    for split in splits:
        for language in languages:
            write(folder / f"{split}.{language}", f"{split} {language}\nsecond\n")
    return folder


@pytest.fixture(autouse=True)
def no_mirror(monkeypatch):
    monkeypatch.delenv("TRANSFORMER_MIRROR", raising=False)


@pytest.fixture
def served(tmp_path, monkeypatch):
    """A corpus "tiny" of one file, x.en.gz, at an address on this machine; and all requests."""
    content, requests = gzip.compress(b"one\n", mtime=0), []
    (tmp_path / "served").mkdir()
    write(tmp_path / "served/x.en.gz", content)

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            requests.append(self.path)

    handler = functools.partial(Handler, directory=str(tmp_path / "served"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    here = f"http://127.0.0.1:{server.server_port}/"
    entry = {
        "addresses": [f"{here}gone/", here],
        "files": {"x.en.gz": {"sha256": hashlib.sha256(content).hexdigest()}},
    }
    monkeypatch.setattr(corpora, "known_corpora", lambda: {"tiny": entry})
    yield entry, requests
    server.shutdown()
    server.server_close()


# Lines


@pytest.mark.parametrize("char", list("\u2028\u2029\u0085\u000b\u000c\u001e\u00a0"))
def test_only_a_line_feed_ends_a_line(tmp_path, char):
    path = write(tmp_path / "x", f"one{char}more\ntwo\n")
    assert read_lines(path) == [f"one{char}more", "two"]


def test_a_carriage_return_inside_a_line_stays(tmp_path):
    assert read_lines(write(tmp_path / "x", "a\rb\r\nc\r\n")) == ["a\rb", "c"]


def test_crlf_and_byte_order_mark_are_not_text(tmp_path):
    path = write(tmp_path / "x", b"\xef\xbb\xbfone\r\n\xef\xbb\xbftwo\r\n")
    assert read_lines(path) == ["one", "\ufefftwo"]


@pytest.mark.parametrize(
    ("data", "lines"),
    [(b"", []), (b"\n", [""]), (b"a", ["a"]), (b"a\n", ["a"]), (b"a\n\n", ["a", ""])],
)
def test_the_last_line_needs_no_line_feed(tmp_path, data, lines):
    assert read_lines(write(tmp_path / "x", data)) == lines


def test_gz_reads_like_plain(tmp_path):
    text = "eins\nzwei ä\n".encode()
    path = write(tmp_path / "x.gz", gzip.compress(text))
    assert read_lines(path) == read_lines(write(tmp_path / "x", text)) == ["eins", "zwei ä"]


def test_an_undecodable_byte_is_named_by_file_and_line(tmp_path):
    path = write(tmp_path / "text.de", b"gut\nGr\xfcn\n")
    with pytest.raises(ValueError, match=r"text\.de, line 2: byte 0xfc is not UTF-8"):
        read_lines(path)


@pytest.mark.parametrize(("kept", "rest"), [(-9, b""), (0, b"plain"), (12, b"\xff" * 9)])
def test_a_broken_archive_is_named(tmp_path, kept, rest):
    path = write(tmp_path / "text.de.gz", gzip.compress(b"some text\n" * 100)[:kept] + rest)
    with pytest.raises(ValueError, match=r"text\.de\.gz is not a whole gzip file"):
        read_lines(path)


# Pairs


@pytest.mark.parametrize("empty", ["", " ", "\t", "\u00a0", "\u200b", "\u2028", "\ufeff"])
@pytest.mark.parametrize("side", [0, 1])
def test_a_pair_with_an_empty_side_is_dropped_as_a_pair(tmp_path, empty, side):
    texts = [["a", "b", "c"], ["A", "B", "C"]]
    texts[side][1] = empty
    files = [write(tmp_path / name, "\n".join(t)) for name, t in zip("xy", texts, strict=True)]
    assert read_pairs(*files) == ([("a", "A"), ("c", "C")], 1)


def test_files_of_unequal_length_are_refused_with_both_counts(tmp_path):
    source, target = write(tmp_path / "x.en", "a\nb\n"), write(tmp_path / "x.de", "A\nB\nC\n")
    with pytest.raises(ValueError, match=r"x\.en has 2 lines, .*x\.de has 3"):
        read_pairs(source, target)


def test_an_unseen_line_break_on_each_side_does_not_shift_the_pairs(tmp_path):
    left, right = [f"e{k}" for k in range(50)], [f"d{k}" for k in range(50)]
    left[3] += "\u2028x"
    right[40] += "\u0085y"
    files = write(tmp_path / "a", "\n".join(left)), write(tmp_path / "b", "\n".join(right))
    pairs, dropped = read_pairs(*files)
    assert pairs == list(zip(left, right, strict=True)) and dropped == 0


# Folders


def test_a_folder_is_read_in_either_direction(tmp_path):
    spec = f"folder:{write_folder(tmp_path)}"
    corpus = load_corpus(spec, "de", "en")
    assert corpus.train == [("train de", "train en"), ("second", "second")]
    assert corpus.dev[0] == ("dev de", "dev en") and corpus.test[0] == ("test de", "test en")
    assert (corpus.name, corpus.source_language, corpus.target_language) == (spec, "de", "en")


def test_a_folder_may_hold_gz_and_any_language(tmp_path):
    write_folder(tmp_path, ("dev", "test"), ("zh", "tlh"))
    for language in ("zh", "tlh"):
        write(tmp_path / f"train.{language}.gz", gzip.compress(language.encode()))
    assert load_corpus(f"folder:{tmp_path}", "zh", "tlh").train == [("zh", "tlh")]


@pytest.mark.parametrize("missing", ["train.en", "dev.de", "test.en"])
def test_a_missing_file_of_a_folder_is_named(tmp_path, missing):
    (write_folder(tmp_path) / missing).unlink()
    with pytest.raises(FileNotFoundError, match=rf"{missing} nor {missing}\.gz"):
        load_corpus(f"folder:{tmp_path}")


def test_a_folder_may_hold_other_test_sets(tmp_path):
    write_folder(tmp_path, ("train", "dev", "test", "news"))
    assert load_corpus(f"folder:{tmp_path}", test="news").test[0] == ("news en", "news de")


def test_dropped_pairs_are_counted_by_split(tmp_path):
    write_folder(tmp_path)
    write(tmp_path / "dev.en", "one\n\n")
    corpus = load_corpus(f"folder:{tmp_path}")
    assert corpus.dropped == {"train": 0, "dev": 1, "test": 0} and len(corpus.dev) == 1


def test_an_empty_split_is_refused(tmp_path):
    write_folder(tmp_path)
    write(tmp_path / "dev.en", "\n\n")
    with pytest.raises(ValueError, match="dev of folder.* holds no sentence pair"):
        load_corpus(f"folder:{tmp_path}")


def test_the_checksum_changes_with_any_text(tmp_path):
    spec = f"folder:{write_folder(tmp_path)}"
    before = load_corpus(spec).checksum
    assert before == load_corpus(spec).checksum and len(before) == 64
    write(tmp_path / "test.de", "test de\nsecond.\n")
    assert load_corpus(spec).checksum != before


def test_training_text_is_the_training_split_alone(tmp_path):
    corpus = load_corpus(f"folder:{write_folder(tmp_path)}")
    assert corpus.training_text() == ["train en", "train de", "second", "second"]


# Requests that make no sense


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("wmt", "en", "de"), "no corpus 'wmt'; there are: grammar, multi30k, folder:PATH"),
        (("multi30k", "en", "en"), "source and target are both 'en'"),
        (("multi30k", "en", "zh"), "multi30k has no language 'zh'; it has: de, en, fr"),
        (("multi30k", "en", "de", "new"), "no test set 'new'; it has: test2016, test2017"),
        (("grammar", "en", "fr"), "grammar has en, de and one test set"),
        (("grammar", "en", "de", "test2016"), "grammar has en, de and one test set"),
    ],
)
def test_an_unknown_request_is_named_with_the_choice(arguments, message):
    with pytest.raises(ValueError, match=message):
        fetch(*arguments)


# The embedded corpus


def test_grammar_needs_no_files_and_has_both_directions(monkeypatch):
    monkeypatch.setattr(corpora, "GRAMMAR_SIZES", {"train": 30, "dev": 3, "test": 2})
    there, back = load_corpus("grammar", "en", "de"), load_corpus("grammar", "de", "en")
    assert fetch("grammar") == {}
    assert (len(there.train), len(there.dev), len(there.test)) == (30, 3, 2)
    assert back.train == [(german, english) for english, german in there.train]
    assert there.dropped == {"train": 0, "dev": 0, "test": 0}
    assert load_corpus().checksum == there.checksum != back.checksum


# Fetching


def test_every_known_file_has_address_size_and_checksum():
    text = (corpora.ROOT / "data/corpora.json").read_text(encoding="utf-8")
    for entry in json.loads(text).values():
        assert all(url.startswith("https://") and url.endswith("/") for url in entry["addresses"])
        stems = [entry["train"], entry["dev"], *entry["tests"].values()]
        names = {f"{stem}.{language}.gz" for stem in stems for language in entry["languages"]}
        assert names == entry["files"].keys()
        for file in entry["files"].values():
            assert len(file["sha256"]) == 64 and file["bytes"] > 0 and file["lines"] > 0


def test_a_dead_address_is_followed_by_the_next_and_the_file_is_cached(tmp_path, served):
    _, requests = served
    path = fetch_file("tiny", "x.en.gz", folder=tmp_path / "cache")
    assert path == tmp_path / "cache/tiny/x.en.gz" and read_lines(path) == ["one"]
    assert requests[-1] == "/x.en.gz"
    count = len(requests)
    fetch_file("tiny", "x.en.gz", folder=tmp_path / "cache")
    assert len(requests) == count
    assert os.listdir(path.parent) == ["x.en.gz"]


def test_a_damaged_file_in_the_cache_is_fetched_again(tmp_path, served):
    path = fetch_file("tiny", "x.en.gz", folder=tmp_path / "cache")
    write(path, b"damaged")
    assert read_lines(fetch_file("tiny", "x.en.gz", folder=tmp_path / "cache")) == ["one"]


def test_a_download_with_another_checksum_is_refused_and_leaves_nothing(tmp_path, served):
    entry, _ = served
    entry["files"]["x.en.gz"]["sha256"] = "0" * 64
    with pytest.raises(ConnectionError, match="TRANSFORMER_MIRROR") as error:
        fetch_file("tiny", "x.en.gz", folder=tmp_path / "cache")
    assert all(address in str(error.value) for address in entry["addresses"])
    assert os.listdir(tmp_path / "cache/tiny") == []


def test_a_mirror_is_tried_before_any_address(tmp_path, served, monkeypatch):
    _, requests = served
    mirror = tmp_path / "served"
    assert fetch_file("tiny", "x.en.gz", tmp_path / "cache", mirror) == mirror / "x.en.gz"
    monkeypatch.setenv("TRANSFORMER_MIRROR", str(mirror))
    assert fetch_file("tiny", "x.en.gz", tmp_path / "cache") == mirror / "x.en.gz"
    (mirror / "tiny").mkdir()
    (mirror / "x.en.gz").rename(mirror / "tiny/x.en.gz")
    assert fetch_file("tiny", "x.en.gz", tmp_path / "cache") == mirror / "tiny/x.en.gz"
    assert requests == []


def test_a_wrong_file_in_a_mirror_is_an_error_with_both_checksums(tmp_path, served):
    entry, requests = served
    wrong = write(tmp_path / "x.en.gz", b"wrong")
    with pytest.raises(ValueError, match=r"x\.en\.gz has SHA-256") as error:
        fetch_file("tiny", "x.en.gz", mirror=tmp_path)
    assert hashlib.sha256(b"wrong").hexdigest() in str(error.value)
    assert entry["files"]["x.en.gz"]["sha256"] in str(error.value)
    assert str(wrong) in str(error.value) and requests == []


# Real text


@real_text
@pytest.mark.parametrize(
    ("test", "size"), [(None, 1000), ("test2017", 1000), ("mscoco", 461), ("test2018", 1071)]
)
def test_multi30k_is_read_from_a_mirror(test, size):
    corpus = load_corpus("multi30k", "en", "fr", test=test, mirror=MULTI30K)
    assert (len(corpus.train), len(corpus.dev), len(corpus.test)) == (29_000, 1_014, size)
    assert corpus.dropped == {"train": 0, "dev": 0, "test": 0}


@real_text
def test_multi30k_english_german_is_the_text_the_reference_runs_saw():
    corpus = load_corpus("multi30k", mirror=MULTI30K)
    assert corpus.checksum == "694b87345d8c3e48d716b57b924333d2035001f447d9e59a981690106db89566"
    assert corpus.test[0] == (
        "A man in an orange hat starring at something.",
        "Ein Mann mit einem orangefarbenen Hut, der etwas anstarrt.",
    )
