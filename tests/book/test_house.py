"""The rules of the house that no single chapter can keep: order, imports, map, set-up."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import nbformat
import pytest
from _book import contents, figure1

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted(path.stem for path in (ROOT / "transformer").glob("*.py"))
PACKAGE = ("__init__", "__main__")


def imports(module: str, top_only: bool = False) -> set[str]:
    """Return the dotted names that a module imports, all or those outside functions."""
    tree = ast.parse((ROOT / "transformer" / f"{module}.py").read_text(encoding="utf-8"))
    found = set()
    for node in tree.body if top_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module)
    return found


def test_every_page_is_in_the_table_of_contents():
    listed = [chapter.file for chapter in contents.chapters(ROOT)]
    found = [*(ROOT / "chapters").glob("*.ipynb"), *(ROOT / "chapters").glob("*.md")]
    assert sorted(listed) == sorted(path for path in found if not path.name.startswith("."))


def test_every_module_is_written_by_a_listed_chapter():
    written = [module for chapter in contents.chapters(ROOT) for module in chapter.modules]
    assert sorted(written) == MODULES


@pytest.mark.parametrize("module", [name for name in MODULES if name not in PACKAGE])
def test_a_module_imports_only_from_chapters_up_to_its_own(module):
    """The book is read forwards: nothing stands on a page that comes later."""
    pages = contents.chapters(ROOT)
    place = {name: number for number, page in enumerate(pages) for name in page.modules}
    names = {name.partition(".")[2] for name in imports(module) if name.startswith("transformer.")}
    late = [name for name in names if name == module or place[name] > place[module]]
    assert not late, f"{module} imports {late}, written after it"


@pytest.mark.parametrize("module", MODULES)
def test_a_module_needs_torch_alone_when_imported(module):
    roots = {name.partition(".")[0] for name in imports(module, top_only=True)}
    assert roots <= set(sys.stdlib_module_names) | {"torch", "transformer"}


def test_import_transformer_works_where_torch_alone_is_installed():
    program = """
import sys
OTHERS = {"pooch", "sacrebleu", "sacremoses", "safetensors", "sentencepiece", "tqdm", "pandas",
          "yaml", "matplotlib", "seaborn", "nbformat", "IPython"}
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in OTHERS:
            raise ImportError(f"{name} is not installed")
sys.meta_path.insert(0, Absent())
import transformer
print(transformer.Transformer.__name__)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "Transformer\n"), done.stderr


@pytest.mark.parametrize("module", [name for name in MODULES if name != "__init__"])
def test_every_module_has_its_test(module):
    assert (ROOT / contents.test_of(module)).exists(), f"write {contents.test_of(module)}"


def test_the_map_on_the_first_page_is_that_of_the_book():
    index = nbformat.read(ROOT / "chapters" / "index.ipynb", as_version=4)
    outputs = [output for cell in index.cells for output in cell.get("outputs", [])]
    maps = [o.data["text/markdown"] for o in outputs if "text/markdown" in o.get("data", {})]
    assert maps == [contents.table(ROOT)], "run it: make execute CHAPTERS=index"


def test_the_map_names_section_modules_and_tests(tmp_path):
    (tmp_path / "chapters").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_attention.py").touch()
    toc = (
        "root: chapters/index\nparts: [{caption: A, chapters: [{file: chapters/3-2-attention}]}]\n"
    )
    (tmp_path / "_toc.yml").write_text(toc, encoding="utf-8")
    (tmp_path / "chapters" / "index.md").write_text("# The book\n", encoding="utf-8")
    cells = [
        nbformat.v4.new_markdown_cell("# 3.2 Attention\n\n## Why"),
        nbformat.v4.new_code_cell("#| export attention\nx = 1"),
        nbformat.v4.new_code_cell("#| export\ndef f(): pass"),
        nbformat.v4.new_code_cell("#| export masks\nx = 1"),
    ]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "chapters/3-2-attention.ipynb")
    assert contents.table(tmp_path).split("\n")[2] == (
        "| 3.2 | [Attention](3-2-attention.ipynb) | `transformer/attention.py`<br>"
        "`transformer/masks.py` | `tests/test_attention.py` |"
    )
    (tmp_path / "chapters" / "3-2-attention.ipynb").unlink()
    with pytest.raises(FileNotFoundError, match="_toc.yml names chapters/3-2-attention"):
        contents.table(tmp_path)


def test_the_constraints_pin_what_the_set_up_asks_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = {name for extra in project["optional-dependencies"].values() for name in extra}
    asked = {name.lower() for name in asked if not name.startswith("transformer-book")}
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").split("\n")
    pins = dict(line.lower().split("==") for line in lines if line and not line.startswith("#"))
    assert asked <= {name.replace("_", "-") for name in pins}
    assert not {"torch", "numpy", "contourpy"} & set(pins), "a machine keeps its own"
    assert pins["sphinx-book-theme"] == "1.2.0"
    assert pins["jupyter-book"].startswith("1.0")
    assert tuple(map(int, pins["ipykernel"].split(".")[:2])) < (7, 3)


def test_the_readme_names_commands_that_exist():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    named = set(
        re.findall(r"(?:^|`)make (?:[A-Z]+= )?([a-z]+)", readme + contributing, re.MULTILINE)
    )
    assert {"reproduce", "test", "book", "lab", "export", "execute", "check"} <= named <= targets
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", readme + contributing)
    assert [link for link in links if not (ROOT / link).exists()] == []
    assert readme.index("<!-- results -->") < readme.index("<!-- /results -->")


def test_figure_1_names_every_part_and_stays_inside_its_page():
    figure = figure1.draw_architecture()
    try:
        texts = [text for text in figure.axes[0].texts if text.get_text()]
        words = [" ".join(text.get_text().split()).lower() for text in texts]
        assert words.count("add & norm") == 5, "two in the encoder, three in the decoder"
        assert words.count("feed forward") == 2
        assert words.count("multi-head attention") == 2
        assert words.count("masked multi-head attention") == 1
        assert words.count("positional encoding") == 2
        assert words.count("$n\\times$") == 2
        for part in (
            "inputs",
            "outputs (shifted right)",
            "linear",
            "softmax",
            "output probabilities",
        ):
            assert words.count(part) == 1, part
        figure.canvas.draw()
        page = figure.bbox
        for text in texts:
            box = text.get_window_extent()
            assert page.x0 <= box.x0 and box.x1 <= page.x1, text.get_text()
            assert page.y0 <= box.y0 and box.y1 <= page.y1, text.get_text()
    finally:
        figure1.plt.close(figure)
