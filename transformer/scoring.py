# Written from chapters/6-1-translation.ipynb by chapters/_book/export.py. Edit the chapter.
"""Scores of translations and of models (paper sections 6.1 and 6.2)."""

__all__ = [
    "Score",
    "bleu",
    "check_sides",
    "evaluate_loss",
    "moses_bleu",
]

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F


@dataclass(frozen=True)
class Score:
    """A score in percent, and the signature that says how it was computed."""

    value: float
    signature: str

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.signature})"


def check_sides(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    """ValueError unless there are as many hypotheses as references, and at least one."""
    if isinstance(hypotheses, str) or isinstance(references, str):
        raise ValueError("a corpus is a list of lines, not one string")
    if len(hypotheses) != len(references):
        raise ValueError(f"{len(hypotheses)} hypotheses, but {len(references)} references")
    if not len(hypotheses):
        raise ValueError("no hypotheses to score")


def bleu(hypotheses: Sequence[str], references: Sequence[str], tokenize: str = "13a") -> Score:
    """sacreBLEU of detokenised text, one reference per line; `tokenize` is "13a" or "intl"."""
    from sacrebleu.metrics import BLEU

    check_sides(hypotheses, references)
    metric = BLEU(tokenize=tokenize)
    value = metric.corpus_score(list(hypotheses), [list(references)]).score
    return Score(value, str(metric.get_signature()))


def moses_bleu(hypotheses: Sequence[str], references: Sequence[str], language: str) -> Score:
    """BLEU of lower-cased text after Moses's tokeniser, as papers on Multi30k report it.

    Both sides are given detokenised; `language` ("de", "fr", ...) picks the abbreviations.
    """
    import sacremoses
    from sacrebleu.metrics import BLEU

    check_sides(hypotheses, references)
    moses = sacremoses.MosesTokenizer(lang=language)
    sides = [
        [moses.tokenize(line.lower(), return_str=True, escape=False) for line in side]
        for side in (hypotheses, references)
    ]
    # Tokenised already: sacreBLEU need not warn of it, and its signature gets the tokeniser.
    metric = BLEU(tokenize="none", lowercase=True, force=True)
    value = metric.corpus_score(sides[0], [sides[1]]).score
    tokeniser = f"tok:moses-{language}-sacremoses-{sacremoses.__version__}"
    return Score(value, str(metric.get_signature()).replace("tok:none", tokeniser))


@torch.no_grad()
def evaluate_loss(model: torch.nn.Module, batches: Iterable) -> dict[str, float]:
    """Loss of a model on batches with the right translation fed in (teacher forcing).

    Returns `nll`, in nats per target token and not smoothed; `perplexity`, its exponential;
    `token_accuracy`, the share of targets that are the most probable token; and `tokens`.
    Padding is in none of them. The perplexity is per word-piece, as in the paper's Table 3.
    """
    device, training = next(model.parameters()).device, model.training
    pad_id = model.config.pad_id
    loss = right = tokens = 0
    model.eval()
    try:
        for batch in batches:
            batch = batch.to(device)
            logits = model(batch.source, batch.target_in).float().flatten(0, 1)
            targets = batch.target_out.flatten()
            some = targets != pad_id
            loss += F.cross_entropy(logits, targets, ignore_index=pad_id, reduction="sum").item()
            right += ((logits.argmax(dim=-1) == targets) & some).sum().item()
            tokens += some.sum().item()
    finally:
        model.train(training)
    if not tokens:
        raise ValueError("no target tokens to evaluate")
    nll = loss / tokens
    perplexity = math.exp(nll) if nll < 700 else math.inf
    accuracy = right / tokens
    return {"nll": nll, "perplexity": perplexity, "token_accuracy": accuracy, "tokens": tokens}
