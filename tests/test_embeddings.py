"""Embeddings and the softmax layer that shares their matrix (chapter 3.4)."""

import math

import pytest
import torch
import torch.nn.functional as F

from transformer.embeddings import Embeddings


def literal_embeddings() -> Embeddings:
    """Three tokens, four components, entries to compute with by hand."""
    ends = Embeddings(3, 4)
    with torch.no_grad():
        rows = [[1.0, 0.0, 0.0, 0.0], [0.0, 2.0, 0.0, 0.0], [1.0, 1.0, 1.0, -1.0]]
        ends.table.weight.copy_(torch.tensor(rows))
    return ends


def test_ids_become_rows_times_the_root_of_d_model():
    vectors = literal_embeddings()(torch.tensor([[2, 0], [1, 1]]))
    expected = [[[2, 2, 2, -2], [2, 0, 0, 0]], [[0, 4, 0, 0], [0, 4, 0, 0]]]
    assert vectors.tolist() == expected  # sqrt(4) = 2


def test_logits_come_from_the_bare_matrix_without_scale_or_bias():
    logits = literal_embeddings().logits(torch.tensor([[[1.0, 2.0, 3.0, 4.0]]]))
    assert logits.tolist() == [[[1.0, 4.0, 2.0]]]
    assert literal_embeddings().logits(torch.zeros(1, 1, 4)).tolist() == [[[0.0, 0.0, 0.0]]]


@pytest.mark.parametrize("d_model", [1, 6, 512])
def test_the_factor_is_the_root_of_any_width(d_model):
    ends = Embeddings(5, d_model)
    tokens = torch.arange(5)[None]
    torch.testing.assert_close(ends(tokens)[0], ends.table.weight * math.sqrt(d_model))


def test_lookup_equals_one_hot_times_matrix_in_value_and_gradient():
    torch.manual_seed(0)
    ends = Embeddings(11, 6)
    matrix = ends.table.weight.detach().clone().requires_grad_()
    tokens = torch.tensor([[3, 1, 3], [10, 0, 3]])
    product = F.one_hot(tokens, 11).float() @ matrix * math.sqrt(6)
    torch.testing.assert_close(ends(tokens), product)
    arriving = torch.randn(2, 3, 6)
    ends(tokens).backward(arriving)
    product.backward(arriving)
    torch.testing.assert_close(ends.table.weight.grad, matrix.grad)


def test_lookup_moves_only_the_rows_used_and_a_repeated_token_collects_twice():
    ends = Embeddings(6, 4)
    ends(torch.tensor([[5, 2, 5]])).sum().backward()
    assert ends.table.weight.grad.tolist() == [
        [0.0] * 4, [0.0] * 4, [2.0] * 4, [0.0] * 4, [0.0] * 4, [4.0] * 4
    ]  # fmt: skip


def test_softmax_moves_every_row():
    torch.manual_seed(0)
    ends = Embeddings(50, 8)
    logits = ends.logits(torch.randn(1, 3, 8))
    F.cross_entropy(logits.flatten(0, 1), torch.tensor([1, 2, 3])).backward()
    assert (ends.table.weight.grad.norm(dim=1) > 0).all()


def test_both_ends_add_to_one_gradient():
    torch.manual_seed(0)
    ends = Embeddings(9, 4)
    tokens, x = torch.tensor([[1, 8]]), torch.randn(1, 2, 4)
    (ends(tokens) ** 2).sum().backward()
    (ends.logits(x) ** 2).sum().backward()
    both = ends.table.weight.grad.clone()
    ends.zero_grad()
    ((ends(tokens) ** 2).sum() + (ends.logits(x) ** 2).sum()).backward()
    torch.testing.assert_close(ends.table.weight.grad, both)


def test_there_is_one_tensor_and_no_bias():
    ends = Embeddings(7, 4)
    assert [tuple(p.shape) for p in ends.parameters()] == [(7, 4)]
    assert list(ends.state_dict()) == ["table.weight"]


def test_entries_start_normal_with_the_deviation_of_tensor2tensor():
    torch.manual_seed(0)
    weight = Embeddings(4000, 64).table.weight
    assert weight.std().item() == pytest.approx(64**-0.5, rel=0.01)
    assert weight.mean().item() == pytest.approx(0, abs=1e-3)


def test_logits_start_with_variance_one_under_normalised_input():
    torch.manual_seed(0)
    x = F.layer_norm(torch.randn(1, 50, 256), (256,))
    assert Embeddings(3000, 256).logits(x).std().item() == pytest.approx(1, rel=0.03)


@pytest.mark.parametrize(("vocab_size", "d_model"), [(0, 4), (-3, 4), (5, 0)])
def test_a_size_below_one_is_an_error_that_names_it(vocab_size, d_model):
    with pytest.raises(ValueError, match=f"not {vocab_size} and {d_model}"):
        Embeddings(vocab_size, d_model)


def test_an_id_outside_the_vocabulary_is_an_error():
    with pytest.raises(IndexError):
        Embeddings(5, 4)(torch.tensor([[5]]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_precision_is_that_of_the_matrix(dtype):
    ends = Embeddings(5, 4).to(dtype)
    x = ends(torch.tensor([[1, 2]]))
    assert x.dtype == dtype and ends.logits(x).dtype == dtype
