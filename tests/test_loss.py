"""The smoothed loss: value, gradient, padding, half precision."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer.loss import smoothed_and_plain, smoothed_cross_entropy
from transformer.model import Transformer, TransformerConfig


def in_the_open(logits, targets, pad_id, eps):
    """Term by term, in float64."""
    vocab = logits.size(-1)
    total = torch.zeros((), dtype=torch.float64)
    for row, target in zip(logits.double().flatten(0, -2), targets.flatten(), strict=True):
        if target != pad_id:
            q = torch.full((vocab,), eps / (vocab - 1), dtype=torch.float64)
            q[target] = 1 - eps
            total = total - (q * row.log_softmax(0)).sum()
    return total


def random_case(shape=(3, 5), vocab=11, seed=0, scale=3.0):
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(*shape, vocab, generator=generator)
    return logits.requires_grad_(), torch.randint(0, vocab, shape, generator=generator)


def test_worked_loss_of_four_tokens():
    right = torch.tensor([0.40, 0.35, 0.60, 0.55])
    probabilities = ((1 - right) / 9)[:, None].repeat(1, 10)
    targets = torch.tensor([6, 7, 8, 9])
    probabilities[range(4), targets] = right
    total, tokens = smoothed_cross_entropy(probabilities.log(), targets, 0, 0.0)
    assert tokens == 4
    assert total.item() == pytest.approx(3.074775, abs=1e-5)
    assert math.exp(total / tokens) == pytest.approx(2.156952, abs=1e-5)


@pytest.mark.parametrize("eps", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("pad_id", [0, 4, -100])
def test_value_and_gradient_equal_the_definition(eps, pad_id):
    logits, targets = random_case()
    targets[0, 3:] = pad_id
    total, tokens = smoothed_cross_entropy(logits, targets, pad_id, eps)
    expected = in_the_open(logits, targets, pad_id, eps)
    assert tokens == (targets != pad_id).sum()
    assert total.item() == pytest.approx(expected.item(), rel=1e-6)
    ours, theirs = (torch.autograd.grad(loss, logits)[0] for loss in (total, expected))
    assert torch.allclose(ours, theirs, atol=1e-6)


def test_equals_torch_when_its_smoothing_is_rescaled_to_all_classes():
    logits, targets = random_case(vocab=50)
    total, _ = smoothed_cross_entropy(logits, targets, 7, 0.1)
    expected = F.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=7,
        label_smoothing=0.1 * 50 / 49, reduction="sum",
    )
    assert total.item() == pytest.approx(expected.item(), rel=1e-6)
    ours, theirs = (torch.autograd.grad(loss, logits)[0] for loss in (total, expected))
    assert torch.allclose(ours, theirs, atol=1e-6)


def test_gradient_is_model_minus_target_distribution():
    logits, _ = random_case(shape=(1,), vocab=5)
    total, _ = smoothed_cross_entropy(logits, torch.tensor([2]), 0, 0.2)
    total.backward()
    q = torch.tensor([0.05, 0.05, 0.8, 0.05, 0.05])
    assert torch.allclose(logits.grad[0], logits.detach()[0].softmax(0) - q, atol=1e-6)


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 40), st.floats(0, 0.9), st.integers(0, 10_000))
def test_loss_is_never_below_the_entropy_of_its_target(vocab, eps, seed):
    logits, targets = random_case(shape=(6,), vocab=vocab, seed=seed)
    total, tokens = smoothed_cross_entropy(logits, targets, -1, eps)
    q = torch.tensor([1 - eps] + [eps / (vocab - 1)] * (vocab - 1), dtype=torch.float64)
    assert total.item() / tokens >= -torch.xlogy(q, q).sum() - 1e-4


def test_floor_is_reached_at_the_target_distribution():
    vocab, eps = 37_000, 0.1
    logits = torch.zeros(1, vocab)
    logits[0, 5] = math.log((1 - eps) * (vocab - 1) / eps)
    total, _ = smoothed_cross_entropy(logits, torch.tensor([5]), 0, eps)
    assert total.item() == pytest.approx(1.3770, abs=1e-3)


def test_padding_changes_neither_sum_nor_number_nor_gradient():
    logits, targets = random_case()
    short, _ = smoothed_cross_entropy(logits, targets, -1)
    (gradient,) = torch.autograd.grad(short, logits)
    longer = torch.cat([logits, 1e4 * torch.ones(3, 2, 11)], dim=1)
    padded = torch.cat([targets, torch.full((3, 2), -1)], dim=1)
    total, tokens = smoothed_cross_entropy(longer, padded, -1)
    assert tokens == 15 and total.item() == pytest.approx(short.item(), rel=1e-6)
    assert torch.equal(torch.autograd.grad(total, logits)[0], gradient)


def test_denominator_is_the_number_of_targets_that_are_no_padding():
    logits, targets = random_case()
    targets[:, 2:] = 9
    targets[:, :2] = 3
    assert smoothed_cross_entropy(logits, targets, 9)[1] == 6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("eps", [0.0, 0.1])
def test_finite_with_extreme_logits_of_every_precision(dtype, eps):
    logits = torch.tensor([65_504.0, -65_504.0, 0.0], dtype=dtype).repeat(2, 4).requires_grad_()
    total, _ = smoothed_cross_entropy(logits, torch.tensor([1, 3]), 5, eps)
    total.backward()
    assert total.dtype == torch.float32 and total.isfinite()
    assert logits.grad.dtype == dtype and logits.grad.isfinite().all()


def test_batch_of_nothing_but_padding_gives_zero_and_zero_gradient():
    logits, _ = random_case()
    total, tokens = smoothed_cross_entropy(logits, torch.full((3, 5), 4), 4)
    total.backward()
    assert total == 0 and tokens == 0 and not logits.grad.any()


def test_batch_without_padding_is_counted_whole():
    logits, _ = random_case()
    total, tokens = smoothed_cross_entropy(logits, torch.full((3, 5), 8), 4)
    assert tokens == 15 and total.isfinite()


def test_padding_stays_finite_even_where_its_logits_are_not():
    logits, targets = random_case()
    logits = logits.detach()
    logits[0, 0] = math.nan
    logits[0, 1] = -math.inf
    targets[0, :2] = 4
    logits.requires_grad_()
    total, _ = smoothed_cross_entropy(logits, targets, 4)
    total.backward()
    assert total.isfinite() and logits.grad.isfinite().all()


def test_impossible_word_costs_an_infinite_smoothed_loss_and_a_finite_plain_one():
    logits = torch.zeros(1, 5)
    logits[0, 3] = -math.inf
    smoothed, plain, _ = smoothed_and_plain(logits, torch.tensor([1]), 0, 0.1)
    assert smoothed == math.inf and plain.item() == pytest.approx(math.log(4))
    assert smoothed_cross_entropy(logits, torch.tensor([1]), 0, 0.0)[0].isfinite()


def test_plain_loss_has_no_gradient_and_ignores_smoothing():
    logits, targets = random_case()
    for eps in (0.0, 0.1, 0.5):
        smoothed, plain, _ = smoothed_and_plain(logits, targets, 4, eps)
        assert smoothed.requires_grad and not plain.requires_grad
        assert plain.item() == pytest.approx(in_the_open(logits, targets, 4, 0.0).item(), rel=1e-6)


def test_second_backward_is_an_error_and_not_a_wrong_gradient():
    logits, targets = random_case()
    total, _ = smoothed_cross_entropy(logits, targets, 4)
    total.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


@pytest.mark.parametrize("eps", [-0.1, 1.0, 2.0])
def test_smoothing_outside_its_range_is_refused_by_its_value(eps):
    logits, targets = random_case()
    with pytest.raises(ValueError, match=str(eps)):
        smoothed_cross_entropy(logits, targets, 0, eps)


def test_no_graph_is_kept_without_gradients():
    logits, targets = random_case()
    with torch.no_grad():
        total, _ = smoothed_cross_entropy(logits, targets, 4)
    assert not total.requires_grad
    assert total.item() == pytest.approx(in_the_open(logits, targets, 4, 0.1).item(), rel=1e-6)


def test_dropout_zero_is_exactly_deterministic_in_training():
    torch.manual_seed(0)
    source, target = torch.randint(3, 20, (2, 3, 6)).unbind()
    for rate, same in ((0.0, True), (0.1, False)):
        model = Transformer(TransformerConfig(20, 2, 16, 32, 2, dropout=rate)).train()
        assert torch.equal(model(source, target), model(source, target)) is same
