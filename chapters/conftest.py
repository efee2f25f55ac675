"""How `pytest --nbval` runs the chapters: on the CPU, in this environment, whatever the machine."""

import os
from pathlib import Path

SANITIZE = Path(__file__).resolve().parents[1] / "tests" / "nbval.cfg"


def pytest_configure(config):
    # A bare `pytest` knows nothing of nbval's options unless the plugin is installed.
    if hasattr(config.option, "nbval_sanitize_with"):
        config.option.nbval_sanitize_with = str(SANITIZE)
        config.option.nbval_current_env = True
    # The kernels inherit what stands here.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ.setdefault("PYTHONHASHSEED", "0")
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers > 1:  # as many threads in all as there are cores
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // workers)))
