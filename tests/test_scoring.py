"""Scores: sacreBLEU as published, Moses-tokenised BLEU, and the loss of a model."""

import gzip
import math
from pathlib import Path

import pytest
import torch

from transformer.batches import Batch, collate
from transformer.model import Transformer, TransformerConfig
from transformer.scoring import Score, bleu, evaluate_loss, moses_bleu

DATA = Path(__file__).resolve().parents[1] / "../shared/data/bleu"
SYSTEMS = {
    "LIUM-NMT.4900": 26.60,
    "uedin-nmt.4722": 28.30,
    "online-F.0": 15.45,
    "C-3MA.4959": 22.67,
}


def lines(name: str) -> list[str]:
    path = DATA / f"newstest2017.{name}.gz"
    if not path.exists():
        pytest.skip(f"no real system outputs in {DATA}")
    return gzip.decompress(path.read_bytes()).decode("utf-8").removesuffix("\n").split("\n")


@pytest.mark.parametrize("system", SYSTEMS)
def test_published_scores_of_wmt17_systems(system):
    score = bleu(lines(f"{system}.en-de"), lines("ref.de"))
    assert round(score.value, 2) == SYSTEMS[system]
    assert "|tok:13a|" in score.signature and "|case:mixed|" in score.signature


def test_international_tokenisation():
    score = bleu(lines("LIUM-NMT.4900.en-de"), lines("ref.de"), tokenize="intl")
    assert round(score.value, 2) == 26.89
    assert "|tok:intl|" in score.signature


def test_moses_bleu_on_a_published_system():
    hypotheses, references = lines("LIUM-NMT.4900.en-de"), lines("ref.de")
    score = moses_bleu(hypotheses, references, "de")
    cased = bleu(hypotheses, references).value
    # Without case more n-grams match; the tokenisers differ by tenths of a point only.
    assert cased < score.value < cased + 1.5
    assert "|case:lc|" in score.signature and "|tok:moses-de-sacremoses-" in score.signature


def test_bleu_of_the_reference_itself_is_100():
    text = ["The cat sat on the mat.", "Two dogs ran over the wide field."]
    assert bleu(text, text).value == pytest.approx(100)
    assert moses_bleu(text, text, "en").value == pytest.approx(100)


def test_bleu_by_hand():
    """6 of 7 words, 4 of 6 pairs, 2 of 5 triples, 1 of 4 fours; 7 words against 8."""
    hypothesis, reference = "a b c d x f g", "a b c d e f g h"
    precision = (6 / 7 * 4 / 6 * 2 / 5 * 1 / 4) ** (1 / 4)
    expected = 100 * math.exp(1 - 8 / 7) * precision
    assert bleu([hypothesis], [reference]).value == pytest.approx(expected)


def test_only_lower_cased_bleu_ignores_case():
    hypotheses, references = ["DIE KATZE SITZT AUF DER MATTE ."], ["Die Katze sitzt auf der Matte."]
    assert bleu(hypotheses, references).value < 10
    assert moses_bleu(hypotheses, references, "de").value == pytest.approx(100)


def test_moses_knows_the_language():
    """"z.B." is an abbreviation in German, where its last dot stays with it."""
    hypotheses, references = ["er mag obst, z.B. äpfel."], ["er mag obst , z.B. äpfel ."]
    assert moses_bleu(hypotheses, references, "de").value == pytest.approx(100)


@pytest.mark.parametrize("score", [bleu, lambda h, r: moses_bleu(h, r, "de")])
def test_sides_of_different_length_are_an_error(score):
    with pytest.raises(ValueError, match="2 hypotheses, but 3 references"):
        score(["a", "b"], ["a", "b", "c"])
    with pytest.raises(ValueError, match="no hypotheses"):
        score([], [])
    with pytest.raises(ValueError, match="not one string"):
        score("abc", ["a", "b", "c"])


def test_a_score_prints_with_its_signature():
    assert str(Score(26.604, "tok:13a")) == "26.60 (tok:13a)"


def small_batches(pad_id: int) -> tuple[Transformer, list[Batch]]:
    config = TransformerConfig(
        9, 1, 8, 16, 2, dropout=0.5, pad_id=pad_id, bos_id=1, eos_id=2, tied=False
    )
    model = Transformer(config, torch.Generator().manual_seed(0))
    pairs = [[([5, 4], [6, 7]), ([5], [8])], [([5], [])]]
    return model, [collate(some, pad_id, 1, 2, 3, 4) for some in pairs]


@pytest.mark.parametrize("pad_id", [0, 3])
def test_loss_is_per_token_without_padding(pad_id):
    model, batches = small_batches(pad_id)
    scores = evaluate_loss(model, batches)
    total = right = 0.0
    model.eval()
    for batch in batches:
        logs = model(batch.source, batch.target_in).log_softmax(-1)
        for row, targets in enumerate(batch.target_out.tolist()):
            for place, target in enumerate(targets):
                if target != pad_id:
                    total -= logs[row, place, target].item()
                    right += logs[row, place].argmax().item() == target
    assert scores["tokens"] == 6
    assert scores["nll"] == pytest.approx(total / 6, rel=1e-5)
    assert scores["perplexity"] == pytest.approx(math.exp(total / 6), rel=1e-5)
    assert scores["token_accuracy"] == right / 6


def test_uniform_model_has_the_vocabulary_as_perplexity():
    model, batches = small_batches(0)
    with torch.no_grad():
        model.generator.table.weight.zero_()
    assert evaluate_loss(model, batches)["perplexity"] == pytest.approx(9)


def test_loss_is_measured_without_dropout_and_leaves_the_mode_alone():
    model, batches = small_batches(0)
    model.train()
    assert evaluate_loss(model, batches) == evaluate_loss(model, iter(batches))
    assert model.training and model.encoder.training
    model.eval()
    evaluate_loss(model, batches)
    assert not model.training


def test_no_targets_is_an_error():
    model, _ = small_batches(0)
    with pytest.raises(ValueError, match="no target tokens"):
        evaluate_loss(model, [])
