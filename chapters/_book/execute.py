"""Run chapters and store their outputs: `python chapters/_book/execute.py 3-2-attention ...`.

Without a name every chapter is run. The CPU is forced, so that stored outputs and `pytest --nbval`
see the same machine. A chapter that fails is left as it was, and its error is printed.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellControlSignal, DeadKernelError
from tqdm import tqdm

CHAPTERS = Path(__file__).resolve().parents[1]


def execute(path: Path, folder: Path | None = None) -> float:
    """Run one notebook in `folder` (its own by default) and store it; return the seconds taken.

    An error in a cell is raised as nbclient's, and the file is then untouched.
    """
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
    store(notebook, path)
    return seconds


def store(notebook: nbformat.NotebookNode, path: Path) -> None:
    """Write a notebook whole or not at all."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            nbformat.write(notebook, file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("chapters", nargs="*", help="names without .ipynb; all when left out")
    parser.add_argument("--folder", type=Path, default=CHAPTERS, help="where the chapters are")
    options = parser.parse_args(arguments)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ.setdefault("PYTHONHASHSEED", "0")
    named = [options.folder / f"{name.removesuffix('.ipynb')}.ipynb" for name in options.chapters]
    every = sorted(p for p in options.folder.glob("*.ipynb") if not p.name.startswith("."))
    for path in named:
        if not path.exists():
            print(f"execute: there is no chapter {path.name}", file=sys.stderr)
            return 1
    failed = 0
    quiet = not sys.stderr.isatty()
    for path in tqdm(named or every, desc="chapters", unit="chapter", disable=quiet, leave=False):
        try:
            print(f"{path.name}: {execute(path):.1f} s", flush=True)
        except (CellControlSignal, DeadKernelError) as error:
            failed += 1
            print(f"{path.name}: {error}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
