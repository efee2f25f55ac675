"""Operations counted by formula, against torch's own counter and the published figures."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from transformer.cost import (
    forward_flops,
    paper_flops,
    projection_flops,
    score_flops,
    training_flops,
)
from transformer.model import Transformer, TransformerConfig

BASE = TransformerConfig.preset("base", vocab_size=37_000)
BIG = TransformerConfig.preset("big", vocab_size=37_000)


def test_published_figures_per_token():
    assert forward_flops(BASE, 1, 0) == 44_040_192
    assert forward_flops(BASE, 0, 1) == 81_928_192
    assert forward_flops(BIG, 1, 0) == 176_160_768
    assert forward_flops(BIG, 0, 1) == 251_936_768


def test_training_is_three_forward_passes():
    assert training_flops(BASE, 5, 7, 3, 4) == 3 * forward_flops(BASE, 5, 7, 3, 4)


def test_whole_runs_of_the_paper():
    assert training_flops(BASE, 25_000, 25_000) * 100_000 == pytest.approx(9.45e17, rel=0.01)
    assert training_flops(BIG, 25_000, 25_000) * 300_000 == pytest.approx(9.63e18, rel=0.01)


def test_papers_rule_is_time_times_gpus_times_speed():
    assert paper_flops(12, 8, 9.5) == pytest.approx(3.2832e18)
    assert paper_flops(84, 8, 9.5) == pytest.approx(2.29824e19)


def test_attention_scores_add_a_percent_at_thirty_tokens():
    share = sum(score_flops(BASE, 30, 30)) / forward_flops(BASE, 1, 1)
    assert 0.008 < share < 0.01


def test_scores_grow_with_length_and_projections_do_not():
    assert score_flops(BASE, 60, 60) == tuple(2 * x for x in score_flops(BASE, 30, 30))
    assert sum(map(sum, projection_flops(BASE).values())) == forward_flops(BASE, 1, 1)


@pytest.mark.parametrize("changes", [{}, {"d_k": 5, "d_v": 7}, {"layers": 1, "tied": False}])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_torchs_counter_agrees_to_the_last_operation(changes, norm):
    small = {"vocab_size": 70, "layers": 2, "d_model": 24, "d_ff": 40, "heads": 4}
    config = TransformerConfig(**(small | changes), norm=norm)
    model = Transformer(config, torch.Generator().manual_seed(0))
    source, target = torch.randint(3, 70, (3, 11)), torch.randint(3, 70, (3, 7))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(source, target).sum().backward()
    assert counter.get_total_flops() == training_flops(config, 33, 21, 11, 7)
