"""The exporter writes what the chapters say, and names every fault it meets."""

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from _book import export

DOCSTRING = '"""Attention (section 3.2)."""\n\nimport math'
FUNCTION = "def scale(d_k):\n    return math.sqrt(d_k)"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project of one chapter, 3-2-attention, already exported."""
    (tmp_path / "chapters").mkdir()
    write(
        tmp_path,
        "3-2-attention",
        f"#| export attention\n{DOCSTRING}",
        f"#| export attention\n{FUNCTION}",
    )
    assert export.main(["--root", str(tmp_path)]) == 0
    return tmp_path


def write(root: Path, name: str, *sources: str, kind: str = "code") -> None:
    """Write a chapter whose cells hold the given sources."""
    new = {"code": nbformat.v4.new_code_cell, "markdown": nbformat.v4.new_markdown_cell}[kind]
    notebook = nbformat.v4.new_notebook(cells=[new(source) for source in sources])
    nbformat.write(notebook, root / "chapters" / f"{name}.ipynb")


def check(root: Path) -> int:
    return export.main(["--check", "--root", str(root)])


def module(root: Path, name: str = "attention") -> str:
    return (root / "transformer" / f"{name}.py").read_text(encoding="utf-8")


def test_a_module_holds_header_docstring_names_and_cells_in_order(root):
    assert module(root) == (
        "# Written from chapters/3-2-attention.ipynb "
        "by chapters/_book/export.py. Edit the chapter.\n"
        '"""Attention (section 3.2)."""\n'
        "\n"
        "__all__ = [\n"
        '    "scale",\n'
        "]\n"
        "\n"
        "import math\n"
        "\n"
        "\n"
        "def scale(d_k):\n"
        "    return math.sqrt(d_k)\n"
    )
    assert check(root) == 0


def test_a_second_export_writes_nothing(root, capsys):
    before = (root / "transformer" / "attention.py").stat().st_mtime_ns
    assert export.main(["--root", str(root)]) == 0
    assert (root / "transformer" / "attention.py").stat().st_mtime_ns == before
    assert "wrote" not in capsys.readouterr().out


def test_cells_without_a_directive_are_not_exported(root):
    write(
        root, "3-2-attention", f"#| export attention\n{DOCSTRING}", "%matplotlib inline\nscale = 3"
    )
    assert export.main(["--root", str(root)]) == 0
    assert "scale" not in module(root)


def test_export_without_a_name_means_the_default_module(root):
    write(
        root,
        "3-2-attention",
        "#| default_exp attention",
        f"#| export\n{DOCSTRING}",
        f"#| export\n{FUNCTION}",
    )
    assert check(root) == 0


def test_a_chapter_may_write_two_modules(root):
    write(
        root,
        "5-5-training",
        '#| export checkpoints\n"""Checkpoints."""',
        '#| export training\n"""Training."""',
        "#| export checkpoints\nKEEP = 5",
    )
    assert export.main(["--root", str(root)]) == 0
    assert module(root, "checkpoints").endswith('__all__ = [\n    "KEEP",\n]\n\nKEEP = 5\n')
    assert module(root, "training").endswith('"""Training."""\n\n__all__ = []\n')


def test_all_is_sorted_and_leaves_private_names_out():
    source = (
        "B, (A, _C) = 1, (2, 3)\n_private = 1\nx: int = 2\nclass K: y = 1\nasync def go(): z = 1"
    )
    assert export.public_names("m", export.ast.parse(source)) == ["A", "B", "K", "go", "x"]


def test_the_package_itself_lists_what_it_imports():
    tree = export.ast.parse("from transformer.model import Transformer\nimport torch")
    assert export.public_names("__init__", tree) == ["Transformer"]
    assert export.public_names("other", tree) == []


def test_an_edited_module_is_drift(root, capsys):
    path = root / "transformer" / "attention.py"
    path.write_text(path.read_text(encoding="utf-8").replace("sqrt", "log"), encoding="utf-8")
    edited = module(root)
    assert check(root) == 1
    assert "transformer/attention.py: differs from its chapter" in capsys.readouterr().err
    assert module(root) == edited, "a check writes nothing"


def test_an_edited_chapter_is_drift(root, capsys):
    changed = FUNCTION.replace("sqrt", "log")
    write(
        root,
        "3-2-attention",
        f"#| export attention\n{DOCSTRING}",
        f"#| export attention\n{changed}",
    )
    assert check(root) == 1
    assert "attention.py: differs" in capsys.readouterr().err


def test_a_module_that_no_chapter_writes_is_drift(root, capsys):
    (root / "transformer" / "handmade.py").write_text("x = 1\n", encoding="utf-8")
    assert check(root) == 1
    assert "transformer/handmade.py: no chapter writes it" in capsys.readouterr().err


def test_a_missing_module_is_drift(root, capsys):
    (root / "transformer" / "attention.py").unlink()
    assert check(root) == 1
    assert "transformer/attention.py: not exported yet" in capsys.readouterr().err


def test_a_module_written_by_two_chapters_is_an_error(root, capsys):
    write(root, "1-introduction", f"#| export attention\n{DOCSTRING}")
    assert check(root) == 1
    error = capsys.readouterr().err
    assert (
        "attention is written by two chapters: 1-introduction.ipynb and 3-2-attention.ipynb"
        in error
    )


def test_a_project_without_chapters_is_an_error(tmp_path, capsys):
    (tmp_path / "chapters").mkdir()
    assert check(tmp_path) == 1
    assert "no chapter in" in capsys.readouterr().err


def test_an_unfinished_copy_of_a_chapter_is_not_a_second_chapter(root):
    copy = root / "chapters" / ".3-2-attention.trial.ipynb"
    copy.write_bytes((root / "chapters" / "3-2-attention.ipynb").read_bytes())
    assert check(root) == 0


FAULTS = {
    "a line magic": ("#| export attention\n%time x = 1", "a magic: '%time x = 1'"),
    "a magic inside a function": (
        "#| export attention\ndef f():\n    %time g()",
        "a magic: '%time g()'",
    ),
    "a cell magic": ("#| export attention\n%%time\nx = 1", "a magic: '%%time'"),
    "a shell command": ("#| export attention\n!ls", "a magic: '!ls'"),
    "a question": ("#| export attention\nprint?", "a magic: 'print?'"),
    "a question in front": ("#| export attention\n?print", "a magic: '?print'"),
    "a magic called as a function": (
        "#| export attention\nget_ipython().run_line_magic('time', 'x')",
        "a magic: get_ipython",
    ),
    "no Python": ("#| export attention\ndef f(:", "holds not Python"),
    "an await outside a function": ("#| export attention\nawait f()", "holds not Python"),
    "a relative import": ("#| export attention\nfrom .masks import causal_mask", "relative import"),
    "a future import": ("#| export attention\nfrom __future__ import annotations", "__future__"),
    "a name defined twice": (f"#| export attention\n{FUNCTION}", "scale is defined twice"),
    "a directive below a comment": ("# first\n#| export attention\nx = 1", "not at the top"),
    "a directive below a magic": ("%%time\n#| export attention\nx = 1", "not at the top"),
    "a directive below an empty line": ("\n#| export attention\nx = 1", "not at the top"),
    "a directive below the code": ("x = 1\n#| export attention", "not at the top"),
    "a directive behind the code": ("x = 1  #| export attention", "not at the top"),
    "an indented directive": ("    #| export attention\nx = 1", "not at the top"),
    "a directive with a gap": ("# | export attention\nx = 1", "not at the top"),
    "a directive without its bar": ("# export attention\nx = 1", "not at the top"),
    "an unknown directive": ("#| exports attention\nx = 1", "unknown directive"),
    "a directive with two names": ("#| export attention masks\nx = 1", "unknown directive"),
    "two directives": ("#| export attention\n#| export masks\nx = 1", "exported once"),
    "no module named": ("#| export\nx = 1", "names no module"),
    "a default without a name": ("#| default_exp", "names a module"),
    "a name that is a keyword": ("#| export lambda\nx = 1", "cannot be the name of a module"),
    "a name that begins with a digit": ("#| export 3d\nx = 1", "cannot be the name of a module"),
    "a module without a docstring": ("#| export masks\nimport torch", "must open with a docstring"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_cell_is_an_error_that_names_it(root, capsys, fault):
    source, message = FAULTS[fault]
    good = [f"#| export attention\n{DOCSTRING}", f"#| export attention\n{FUNCTION}"]
    write(root, "3-2-attention", *good, source)
    before = module(root)
    for arguments in (["--check"], []):
        assert export.main([*arguments, "--root", str(root)]) == 1
        error = capsys.readouterr().err
        assert "3-2-attention.ipynb, code cell 3: " in error
        assert message in error
    assert module(root) == before, "a fault leaves the package as it was"


def test_a_second_default_is_an_error(root, capsys):
    write(root, "3-2-attention", "#| default_exp attention", "#| default_exp masks")
    assert check(root) == 1
    assert "code cell 2: `#| default_exp` stands once" in capsys.readouterr().err


def test_a_directive_in_a_markdown_cell_is_an_error(root, capsys):
    write(root, "1-introduction", f"#| export attention\n{FUNCTION}", kind="markdown")
    assert check(root) == 1
    assert "'#| export attention' stands in a markdown cell" in capsys.readouterr().err


def test_the_command_line_checks_this_very_project():
    done = subprocess.run(
        [sys.executable, export.__file__, "--check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
