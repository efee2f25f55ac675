"""The position-wise feed-forward network (chapters/3-3-feed-forward)."""

import pytest
import torch
from torch import nn

from transformer.feed_forward import FeedForward


def network(d_model=8, d_ff=32):
    torch.manual_seed(0)
    return FeedForward(d_model, d_ff)


def inputs(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def test_it_is_two_affine_maps_with_a_relu_between():
    small = FeedForward(2, 3)
    with torch.no_grad():
        small.inner.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]]))
        small.inner.bias.copy_(torch.tensor([0.0, 1.0, 0.5]))
        small.outer.weight.copy_(torch.tensor([[1.0, 2.0, 4.0], [0.0, 1.0, -1.0]]))
        small.outer.bias.copy_(torch.tensor([0.25, -0.25]))
    x = torch.tensor([[[2.0, -3.0], [-1.0, 0.0]]])
    # hidden: (2, 0, 1.5) and (0, 1, 1.5)
    expected = torch.tensor([[[8.25, -1.75], [8.25, -0.75]]])
    torch.testing.assert_close(small(x), expected)


def test_no_relu_follows_the_second_map():
    assert network()(inputs(50, 8)).min() < 0


def test_a_permutation_of_positions_passes_through():
    x, order = inputs(2, 9, 8), torch.tensor([3, 1, 4, 0, 5, 8, 2, 6, 7])
    ffn = network()
    torch.testing.assert_close(ffn(x[:, order]), ffn(x)[:, order], atol=1e-6, rtol=0)


def test_a_position_alone_gives_what_it_gives_in_a_batch():
    x, ffn = inputs(2, 9, 8), network()
    torch.testing.assert_close(ffn(x[1, 4]), ffn(x)[1, 4], atol=1e-6, rtol=0)


def test_no_position_depends_on_another():
    jacobian = torch.autograd.functional.jacobian(network(), inputs(4, 8))
    between = jacobian.norm(dim=(1, 3))
    assert between[~torch.eye(4, dtype=torch.bool)].max() == 0
    assert between.diagonal().min() > 0.01


def test_it_equals_two_convolutions_of_size_one_in_value_and_gradient():
    ffn = network().double()
    convolutions = nn.Sequential(nn.Conv1d(8, 32, 1), nn.ReLU(), nn.Conv1d(32, 8, 1)).double()
    with torch.no_grad():
        for convolution, linear in zip(convolutions[::2], (ffn.inner, ffn.outer), strict=True):
            convolution.weight.copy_(linear.weight[:, :, None])
            convolution.bias.copy_(linear.bias)
    x, upstream = inputs(2, 9, 8).double(), inputs(2, 9, 8).double()
    first, second = x.clone().requires_grad_(), x.clone().requires_grad_()
    ours, theirs = ffn(first), convolutions(second.mT).mT
    ours.backward(upstream)
    theirs.backward(upstream)
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)
    torch.testing.assert_close(first.grad, second.grad, atol=1e-12, rtol=0)
    for mine, other in zip(ffn.parameters(), convolutions.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad.reshape_as(mine), atol=1e-12, rtol=0)


def test_base_has_two_biases_and_2_099_712_parameters():
    with torch.device("meta"):
        base = FeedForward(512, 2048)
    shapes = {name: tuple(p.shape) for name, p in base.named_parameters()}
    assert shapes == {
        "inner.weight": (2048, 512),
        "inner.bias": (2048,),
        "outer.weight": (512, 2048),
        "outer.bias": (512,),
    }
    assert sum(p.numel() for p in base.parameters()) == 2_099_712


def test_training_mode_has_no_dropout():
    ffn, x = network(), inputs(2, 9, 8)
    assert torch.equal(ffn.train()(x), ffn.eval()(x))


def test_bf16_stays_close_to_float64():
    x, ffn = inputs(20, 64), network(64, 256)
    exact = ffn.double()(x.double())
    rounded = ffn.bfloat16()(x.bfloat16()).double()
    assert (rounded - exact).norm() / exact.norm() < 0.02


@pytest.mark.parametrize(("widths", "culprit"), [((0, 8), "d_model"), ((8, -1), "d_ff")])
def test_an_impossible_width_is_named(widths, culprit):
    with pytest.raises(ValueError, match=culprit):
        FeedForward(*widths)
