"""Translator: text in, text out, in the order given, the same in any company."""

import json
import random
from dataclasses import asdict

import pytest
import torch

from transformer import Translator
from transformer.checkpoints import save_model
from transformer.model import Transformer, TransformerConfig
from transformer.tokens import Tokenizer
from transformer.translator import groups

WORDS = ["a", "man", "woman", "dog", "cat", "bird", "runs", "sits", "sings"]
WORDS += ["near", "under", "the", "old", "red", "house", "tree", "river"]


def sentences(count: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, 12))) for _ in range(count)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(sentences(500), vocab_size=60)


def model_for(tokenizer: Tokenizer, **changes) -> Transformer:
    ids = {name: getattr(tokenizer, name) for name in ("pad_id", "bos_id", "eos_id")}
    shape = {"layers": 1, "d_model": 16, "d_ff": 32, "heads": 2, "tied": False, **changes}
    config = TransformerConfig(tokenizer.vocab_size, **shape, **ids)
    model = Transformer(config, torch.Generator().manual_seed(0)).eval()
    with torch.no_grad():  # an untrained model that has more than one thing to say
        model.generator.table.weight.mul_(2)
        for layer in model.decoder.layers:
            layer.cross_attention.output.weight.mul_(4)
    return model


@pytest.fixture(scope="module")
def translator(tokenizer) -> Translator:
    return Translator(model_for(tokenizer), tokenizer)


def test_input_order_is_kept_and_batches_change_nothing(translator):
    lines = sentences(30, seed=1)
    together = translator.translate(lines, max_extra=5)
    assert len(set(together)) > 15
    assert together == [translator.translate([line], max_extra=5)[0] for line in lines]
    order = random.Random(2).sample(range(30), 30)
    shuffled = translator.translate([lines[i] for i in order], max_extra=5)
    assert shuffled == [together[i] for i in order]
    narrow = Translator(translator.model, translator.tokenizer, max_tokens=20)
    assert narrow.translate(lines, max_extra=5) == together


def test_empty_lines_stay_empty_and_shift_nothing(translator):
    [one, other] = translator.translate(["a man runs", "the red house"])
    lines = ["", "a man runs", "  ", "\t", "the red house", "\n", "\u00a0"]
    assert translator.translate(lines) == ["", one, "", "", other, "", ""]
    assert translator.translate([]) == []


def test_repeated_lines_are_translated_alike(translator):
    lines = ["a dog sits"] * 3 + ["a cat"] + ["a dog sits"]
    found = translator.translate(lines)
    assert found[0] == found[1] == found[2] == found[4]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\u2028", "\u0085"])
def test_a_line_break_counts_as_a_space(translator, end):
    assert translator.translate([f"a dog{end}sits{end}"]) == translator.translate(["a dog sits"])
    assert all(len(text.splitlines()) <= 1 for text in translator.translate(sentences(5)))


def test_one_string_is_not_a_list_of_lines(translator):
    with pytest.raises(ValueError, match=r"list of lines, not one string: \['a man runs'\]"):
        translator.translate("a man runs")
    with pytest.raises(ValueError, match="line 2 is not a string: None"):
        translator.translate(["a man", None])


def test_long_source_is_translated_up_to_the_limit(translator):
    long = " ".join(["bird"] * 30)
    tokens = len(translator.tokenizer.encode(long)) + 1
    assert len(translator.translate([long], beam=1, max_extra=0)) == 1
    limited = Translator(translator.model, translator.tokenizer, max_source=tokens - 1)
    with pytest.raises(ValueError, match=f"line 2 has {tokens} tokens, the limit is {tokens - 1}"):
        limited.translate(["a man", long])


def test_learned_positions_name_the_line(tokenizer):
    translator = Translator(model_for(tokenizer, positions="learned", max_length=20), tokenizer)
    assert len(translator.translate(["a man runs"], max_extra=10)) == 1
    with pytest.raises(ValueError, match="line 2 has .* tokens, the limit is 5"):
        translator.translate(["a man", "the old red house near the river"], max_extra=15)


def test_unknown_characters_are_translated(translator):
    assert len(translator.translate(["\u4f60\u597d \U0001f600"])) == 1


def test_settings_reach_the_search(translator):
    with pytest.raises(ValueError, match="alpha"):
        translator.translate(["a man"], alpha=-1.0)
    with pytest.raises(ValueError, match="beam"):
        translator.translate(["a man"], beam=0)
    lines = sentences(20, seed=3)
    assert translator.translate(lines, beam=1) != translator.translate(lines, beam=8)


def test_progress_shows_a_bar(translator, capfd):
    quiet = translator.translate(["a man", "a dog"])
    assert capfd.readouterr().err == ""
    assert translator.translate(["a man", "a dog"], progress=True) == quiet
    assert "2/2" in capfd.readouterr().err


def test_a_run_folder_is_loaded(tmp_path, tokenizer, translator):
    config = {"model": asdict(translator.model.config)}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_model(tmp_path / "averaged.safetensors", translator.model)
    tokenizer.save(tmp_path / "tokenizer.model")
    loaded = Translator.load(tmp_path, device="cpu")
    assert not loaded.model.training
    assert loaded.translate(sentences(5)) == translator.translate(sentences(5))


def test_a_tokenizer_of_another_model_is_refused(tokenizer):
    other = Tokenizer.train(sentences(500), vocab_size=50)
    with pytest.raises(ValueError, match="vocab_size is 50 in the tokenizer and 60 in the model"):
        Translator(model_for(tokenizer), other)


def test_batches_keep_to_their_budget_and_to_no_order():
    sources = [[5] * n for n in (3, 9, 1, 4, 9, 2, 30)] + [[6, 5, 5]]
    cut = list(groups(sources, max_tokens=20))
    assert [[len(ids) for ids in group] for group in cut] == [[30], [9, 9], [4, 3, 3, 2, 1]]
    assert list(groups(sources[::-1], max_tokens=20)) == cut
    assert [len(group) for group in groups([[1]] * 300, max_tokens=10**6)] == [128, 128, 44]
    assert list(groups([], max_tokens=20)) == []
