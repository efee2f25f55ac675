"""Byte-pair encoding: sizes, round trips, what may not become a control id."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer.tokens import Tokenizer, normalise

MULTI30K = Path(__file__).resolve().parents[2] / "shared/data/multi30k"
LINES = [
    "The black cat sings, and the small dog sleeps.",
    "Die schwarze Katze singt, und der kleine Hund schläft.",
    "Two singers sang; the cats were sleeping!",
    "Zwei Sänger sangen; die Katzen schliefen!",
] * 5


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(LINES, 80)


def test_the_vocabulary_has_the_size_asked_for():
    for size in (60, 80, 100):
        assert Tokenizer.train(LINES, size).vocab_size == size


def test_ids_of_padding_bos_eos_and_unknown(tokenizer):
    ids = (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id)
    assert ids == (0, 1, 2, 3)


def test_a_vocabulary_too_large_names_the_largest_possible():
    with pytest.raises(ValueError, match=r"of 5000: the largest possible is \d+") as error:
        Tokenizer.train(LINES, 5000)
    largest = int(str(error.value).rsplit(" ", 1)[1])
    assert Tokenizer.train(LINES, largest).vocab_size == largest
    with pytest.raises(ValueError, match="largest possible"):
        Tokenizer.train(LINES, largest + 1)


def test_a_vocabulary_too_small_names_what_the_characters_need():
    with pytest.raises(ValueError, match=r"vocabulary of 10: its characters .* need \d+") as error:
        Tokenizer.train(LINES, 10)
    smallest = int(str(error.value).rsplit(" ", 1)[1])
    assert Tokenizer.train(LINES, smallest).vocab_size == smallest


def test_no_text_is_refused():
    with pytest.raises(ValueError, match="no text"):
        Tokenizer.train(["", " \u00a0"], 100)


def test_the_first_merges_are_the_most_frequent_pairs():
    tokenizer = Tokenizer.train(["sing sings singing ring rings singt"], 4 + 3 + 7)
    pieces = [tokenizer.processor.id_to_piece(i) for i in range(4, 7)]
    assert pieces == ["in", "ing", "▁s"]


def test_round_trip_is_exact_on_training_text(tokenizer):
    for line in LINES:
        assert tokenizer.decode(tokenizer.encode(line)) == line


@settings(max_examples=300, deadline=None)
@given(text=st.text(alphabet=sorted(set("".join(LINES))) + list("\t\n\u00a0\u2028\u0085\u3000")))
def test_round_trip_gives_the_normalised_text(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == normalise(text)


@settings(max_examples=300, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_unknown_characters_come_back_as_a_sign_and_nothing_else_changes(tokenizer, text):
    known = set("".join(LINES))
    expected, unknown = "", False
    for char in normalise(text):
        if char in known:
            expected += char
        elif not unknown:
            expected += "\u2047"
        unknown = char not in known
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == expected
    assert not {tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id} & set(ids)


@pytest.mark.parametrize("sign", ["<s>", "</s>", "<pad>", "<unk>", "<0x0A>"])
def test_a_sign_typed_by_the_user_is_text(sign):
    lines = [*LINES, "a < b > c / d p 0 x A <<>> s/s unk pad"]
    tokenizer = Tokenizer.train(lines, 100)
    ids = tokenizer.encode(f"the {sign} cat")
    assert not set(ids) & {0, 1, 2, 3}
    assert tokenizer.decode(ids) == f"the {sign} cat"


def test_signs_in_the_training_text_do_not_become_control_ids():
    lines = LINES + ["</s> <s> <pad> <unk>"] * 50
    tokenizer = Tokenizer.train(lines, 100)
    assert not set(tokenizer.encode("</s> <s> <pad> <unk>")) & {0, 1, 2, 3}
    assert tokenizer.decode(tokenizer.encode("</s> <s> <pad> <unk>")) == "</s> <s> <pad> <unk>"


def test_padding_bos_and_eos_have_no_text(tokenizer):
    ids = tokenizer.encode("the cat")
    assert tokenizer.decode([1, *ids, 2, 0, 0]) == "the cat"


def test_empty_in_empty_out(tokenizer):
    assert tokenizer.encode("") == tokenizer.encode(" \u00a0") == []
    assert tokenizer.decode([]) == ""


@pytest.mark.parametrize("bad", [-1, 80])
def test_an_id_outside_the_vocabulary_is_named(tokenizer, bad):
    with pytest.raises(ValueError, match=f"id {bad} is outside the vocabulary of 80"):
        tokenizer.decode([5, bad])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("u\u0308ber", "über"),
        ("  a \t b\u00a0c\u2028d\u0085e\u3000f ", "a b c d e f"),
        ("½ ﬁ ２０ …", "½ ﬁ ２０ …"),
        ("好，谢谢。", "好，谢谢。"),
        ("a\u2581b", "a_b"),
    ],
)
def test_normalisation_touches_accents_and_white_space_alone(text, expected):
    assert normalise(text) == expected == normalise(expected)


def test_save_and_load_give_the_same_ids(tmp_path, tokenizer):
    path = tmp_path / "run/tokenizer.model"
    tokenizer.save(path)
    loaded = Tokenizer.load(path)
    assert os.listdir(path.parent) == ["tokenizer.model"]
    assert loaded.vocab_size == 80
    assert [loaded.encode(line) for line in LINES] == [tokenizer.encode(line) for line in LINES]


def test_train_saves_at_its_path(tmp_path):
    tokenizer = Tokenizer.train(LINES, 80, tmp_path / "t.model", seed=3)
    assert (tmp_path / "t.model").read_bytes() == tokenizer.model


def test_a_file_that_is_no_model_is_named(tmp_path):
    (tmp_path / "bad.model").write_bytes(b"no model")
    with pytest.raises(ValueError, match="bad.model is not a sentencepiece model"):
        Tokenizer.load(tmp_path / "bad.model")
    with pytest.raises(FileNotFoundError, match="none.model"):
        Tokenizer.load(tmp_path / "none.model")


def test_the_same_text_gives_the_same_file_in_another_process(tokenizer):
    code = (
        "import hashlib\nfrom transformer.tokens import Tokenizer\n"
        f"print(hashlib.sha256(Tokenizer.train({LINES!r}, 80).model).hexdigest())"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "12345", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code]
    out = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert out.stdout.strip() == hashlib.sha256(tokenizer.model).hexdigest()


def test_beyond_max_lines_the_seed_draws_a_sample():
    lines = [f"{word} {word}er {word}ing" for word in ("sing", "ring", "walk", "talk", "bark")]

    def train(seed):
        return Tokenizer.train(lines, 24, seed=seed, max_lines=3).model

    assert train(0) == train(0)
    assert len({train(seed) for seed in range(5)}) > 1


@pytest.mark.parametrize("line", ["word " * 3000 + "ж", "\u2585 ж", "</s>ж", "ж\tж", "\u2047ж"])
def test_no_line_of_the_training_text_is_left_out(line):
    tokenizer = Tokenizer.train([*LINES, line], 80)
    assert tokenizer.unk_id not in tokenizer.encode("ж")


def test_real_text_leaves_nothing_unknown_that_training_saw():
    if not MULTI30K.is_dir():
        pytest.skip(f"no real text at {MULTI30K}")
    from transformer.corpora import load_corpus

    corpus = load_corpus("multi30k", mirror=MULTI30K)
    text = corpus.training_text()
    tokenizer = Tokenizer.train(text, 4000)
    assert tokenizer.vocab_size == 4000
    for line in text[::10]:
        ids = tokenizer.encode(line)
        assert tokenizer.unk_id not in ids and tokenizer.decode(ids) == normalise(line)
    held_out = [line for pair in corpus.dev + corpus.test for line in pair]
    new = {char for line in held_out for char in normalise(line)} - set("".join(text))
    unknown = {line for line in held_out if tokenizer.unk_id in tokenizer.encode(line)}
    assert unknown == {line for line in held_out if set(normalise(line)) & new}
