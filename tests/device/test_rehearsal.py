"""The checks that wait for a GPU run small on the CPU, so that they are right when needed."""

import pytest
from device import gpu


@pytest.mark.parametrize(
    "check", [gpu.fused_equals_explicit, gpu.causal_and_cached, gpu.resumed_equals_straight,
              gpu.search_speed], ids=lambda check: check.__name__
)  # fmt: skip
def test_a_gpu_check_passes_small_on_the_cpu(check):
    assert check(gpu.Setting(rehearse=True))
