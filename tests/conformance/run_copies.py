"""Run tests against copies of the package: `python run_copies.py JOBS RESULTS`.

JOBS is a JSON list of [folder that holds a copy, [tests]]. RESULTS becomes a list of
[pytest's exit status, its output]. All copies are run in one process, so that torch is imported
once; between two of them everything that came from a copy is forgotten.
"""

import contextlib
import importlib
import io
import json
import sys
from pathlib import Path

import pytest
import torch  # noqa: F401  (kept from copy to copy)

TESTS = Path(__file__).resolve().parents[1]
NOT_THE_COPY = 70  # a status pytest does not have


def forget() -> None:
    """Take the package, and every test that imported it, out of Python's modules."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        from_tests = file and Path(file).is_relative_to(TESTS) and name != "__main__"
        if name.partition(".")[0] in ("transformer", "conformance") or from_tests:
            del sys.modules[name]
    importlib.invalidate_caches()


def run(folder: str, tests: list[str]) -> tuple[int, str]:
    forget()
    sys.path.insert(0, folder)
    options = ["-x", "-q", "-p", "no:cacheprovider", "--import-mode=importlib"]
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output):
            status = pytest.main([*options, "-c", f"{folder}/pytest.ini", *tests])
    finally:
        sys.path.remove(folder)
    package = sys.modules.get("transformer")
    if package is None or Path(package.__file__).resolve().parents[1] != Path(folder).resolve():
        return NOT_THE_COPY, output.getvalue()
    return int(status), output.getvalue()


if __name__ == "__main__":
    jobs = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    results = json.dumps([run(folder, tests) for folder, tests in jobs])
    Path(sys.argv[2]).write_text(results, encoding="utf-8")
