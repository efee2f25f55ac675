"""The learning rate, and Adam as the training loop uses it."""

import pytest
import torch

from transformer.schedule import learning_rate
from transformer.training import TrainingConfig, make_optimizer


def test_literal_values_of_the_papers_formula():
    assert learning_rate(1, 512, 4000) == pytest.approx(1.746928e-7, rel=1e-6)
    assert learning_rate(4000, 512, 4000) == pytest.approx(6.987712e-4, rel=1e-6)
    assert learning_rate(16000, 512, 4000) == pytest.approx(3.493856e-4, rel=1e-6)
    assert learning_rate(4000, 1024, 4000) == pytest.approx(4.941059e-4, rel=1e-6)


def test_rate_rises_to_the_end_of_warm_up_and_falls_after_it():
    rates = [learning_rate(k, 64, 100) for k in range(1, 401)]
    assert rates.index(max(rates)) == 99
    assert all(a < b for a, b in zip(rates[:99], rates[1:100], strict=True))
    assert all(a > b for a, b in zip(rates[99:-1], rates[100:], strict=True))


def test_first_update_has_a_rate_above_zero():
    assert learning_rate(1, 512, 4000) > 0


@pytest.mark.parametrize("step", [0, -1])
def test_step_below_one_is_refused_by_its_value(step):
    with pytest.raises(ValueError, match=f"step {step}"):
        learning_rate(step, 512, 4000)


@pytest.mark.parametrize(("width", "warmup"), [(0, 4000), (512, 0)])
def test_width_or_warm_up_below_one_is_refused(width, warmup):
    with pytest.raises(ValueError, match=f"d_model {width} and warmup_steps {warmup}"):
        learning_rate(1, width, warmup)


def test_scale_multiplies_the_rate():
    assert learning_rate(7, 64, 10, scale=2.5) == 2.5 * learning_rate(7, 64, 10)


def test_warm_up_of_one_starts_at_the_peak():
    assert learning_rate(1, 4, 1) == 0.5
    assert learning_rate(4, 4, 1) == 0.25


def test_optimizer_has_the_papers_constants_and_no_weight_decay():
    group = make_optimizer(torch.nn.Linear(2, 2), TrainingConfig()).param_groups[0]
    assert group["betas"] == (0.9, 0.98) and group["eps"] == 1e-9 and group["weight_decay"] == 0


def test_adam_by_hand_equals_the_optimizer_with_bias_correction():
    model = torch.nn.Linear(3, 2, bias=False)
    weight = model.weight.detach().double().clone()
    optimizer = make_optimizer(model, TrainingConfig())
    optimizer.param_groups[0]["lr"] = 0.01
    m, v = torch.zeros_like(weight), torch.zeros_like(weight)
    generator = torch.Generator().manual_seed(0)
    for k in range(1, 21):
        model.weight.grad = torch.randn(2, 3, generator=generator)
        g = model.weight.grad.double()
        m, v = 0.9 * m + 0.1 * g, 0.98 * v + 0.02 * g * g
        weight -= 0.01 * (m / (1 - 0.9**k)) / ((v / (1 - 0.98**k)).sqrt() + 1e-9)
        optimizer.step()
    assert torch.allclose(model.weight.double(), weight, atol=1e-6)
