"""Padding and causal masks (chapter 3.2.3)."""

import pytest
import torch

from transformer.attention import MultiHeadAttention
from transformer.masks import causal_mask, padding_mask


def test_padding_mask_hides_the_pad_as_a_key_of_every_head_and_query():
    mask = padding_mask(torch.tensor([[5, 6, 0], [7, 0, 0]]), pad_id=0)
    assert mask.shape == (2, 1, 1, 3) and mask.dtype == torch.bool
    assert mask[:, 0, 0].tolist() == [[True, True, False], [True, False, False]]


@pytest.mark.parametrize("pad_id", [0, 1, 7])
def test_padding_mask_assumes_no_pad_id(pad_id):
    tokens = torch.tensor([[0, 1, 7, 9]])
    expected = [token != pad_id for token in (0, 1, 7, 9)]
    assert padding_mask(tokens, pad_id)[0, 0, 0].tolist() == expected


def test_causal_mask_lets_a_query_see_itself_and_what_came_before():
    assert causal_mask(3).int().tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert causal_mask(3).dtype == torch.bool


@pytest.mark.parametrize(("length", "past"), [(1, 0), (1, 4), (2, 3), (5, 0), (3, 1)])
def test_causal_mask_with_a_past_is_the_last_rows_of_the_full_mask(length, past):
    assert torch.equal(causal_mask(length, past), causal_mask(length + past)[past:])


def test_causal_mask_of_nothing_is_empty():
    assert causal_mask(0).shape == (0, 0) and causal_mask(0, past=2).shape == (0, 2)


@pytest.mark.parametrize(("length", "past"), [(-1, 0), (2, -3)])
def test_a_negative_length_or_past_is_an_error_that_names_both(length, past):
    with pytest.raises(ValueError, match=f"{length} and {past}"):
        causal_mask(length, past)


def test_masks_stay_on_the_device_asked_for():
    assert causal_mask(2, device=torch.device("meta")).device.type == "meta"
    tokens = torch.zeros(1, 2, dtype=torch.long, device="meta")
    assert padding_mask(tokens, 0).device.type == "meta"


def test_both_masks_combine_into_one_for_each_sentence():
    tokens = torch.tensor([[1, 5, 6], [1, 5, 3]])
    mask = causal_mask(3) & padding_mask(tokens, pad_id=3)
    assert mask.shape == (2, 1, 3, 3)
    assert mask[1, 0].int().tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 0]]


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_a_later_token_never_changes_an_earlier_output(need_weights, training):
    torch.manual_seed(0)
    attention = MultiHeadAttention(16, 2).train(training)
    x = torch.randn(2, 6, 16)
    before = attention(x, x, causal_mask(6), need_weights)[0]
    changed = x.clone()
    changed[:, 4:] += 10
    after = attention(changed, changed, causal_mask(6), need_weights)[0]
    assert torch.equal(before[:, :4], after[:, :4])
    assert not torch.allclose(before[:, 4:], after[:, 4:])


@pytest.mark.parametrize("need_weights", [False, True])
def test_no_gradient_flows_back_from_earlier_outputs_to_later_inputs(need_weights):
    torch.manual_seed(0)
    attention = MultiHeadAttention(16, 2)
    x = torch.randn(1, 5, 16, requires_grad=True)
    attention(x, x, causal_mask(5), need_weights)[0][:, :2].square().sum().backward()
    assert x.grad[:, :2].abs().min() > 0 and not x.grad[:, 2:].any()


@pytest.mark.parametrize("pad_id", [0, 3])
def test_what_stands_at_padded_positions_does_not_matter(pad_id):
    torch.manual_seed(0)
    attention = MultiHeadAttention(16, 4)
    tokens = torch.tensor([[5, 6, 7, pad_id, pad_id]])
    x = torch.randn(1, 5, 16)
    padded = attention(x, x, padding_mask(tokens, pad_id))[0]
    x[:, 3:] = 100.0
    other = attention(x, x, padding_mask(tokens, pad_id))[0]
    alone = attention(x[:, :3], x[:, :3])[0]
    torch.testing.assert_close(padded[:, :3], alone, rtol=0, atol=1e-6)
    torch.testing.assert_close(other[:, :3], alone, rtol=0, atol=1e-6)
