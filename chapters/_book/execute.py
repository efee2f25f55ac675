"""Run chapters and store their outputs: `python chapters/_book/execute.py 3-2-attention ...`.

Without a name every chapter is run. The CPU is forced, so that stored outputs and `pytest --nbval`
see the same machine. A chapter that fails is left as it was, and its error is printed.
"""

import argparse
import os
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

CHAPTERS = Path(__file__).resolve().parents[1]


def execute(path: Path, folder: Path | None = None) -> float:
    """Run one notebook in `folder` (its own by default) and store it; return the seconds taken."""
    notebook = nbformat.read(path, as_version=4)
    began = time.perf_counter()
    NotebookClient(
        notebook,
        timeout=1200,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(folder or path.parent)}},
    ).execute()
    seconds = time.perf_counter() - began
    # Only what every machine agrees on is stored.
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    temporary = path.with_suffix(".tmp")
    nbformat.write(notebook, temporary)
    os.replace(temporary, path)
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("chapters", nargs="*", help="names without .ipynb; all when left out")
    names = parser.parse_args().chapters
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    paths = [CHAPTERS / f"{name.removesuffix('.ipynb')}.ipynb" for name in names]
    failed = 0
    for path in paths or sorted(CHAPTERS.glob("*.ipynb")):
        if not path.exists():
            print(f"execute: there is no chapter {path.name}", file=sys.stderr)
            return 1
        try:
            print(f"{path.name}: {execute(path):.1f} s", flush=True)
        except CellExecutionError as error:
            failed += 1
            print(f"{path.name}: {error}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
