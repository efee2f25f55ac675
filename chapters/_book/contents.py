"""The book's contents, read from the book itself: section of the paper, chapter, modules, tests."""

import re
from dataclasses import dataclass
from pathlib import Path

import nbformat
import yaml

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Chapter:
    """One page of the table of contents."""

    part: str
    file: Path
    title: str
    modules: tuple[str, ...]

    @property
    def section(self) -> str:
        """The paper's section that the title opens with, or an empty string."""
        match = re.match(r"[\d.]+(?= )", self.title)
        return match[0] if match else ""


def page(root: Path, name: str) -> Path:
    """Return the file behind an entry of `_toc.yml`, which carries no suffix."""
    for suffix in (".ipynb", ".md"):
        if (path := root / f"{name}{suffix}").exists():
            return path
    raise FileNotFoundError(f"_toc.yml names {name}, and there is no such page")


def title_and_modules(path: Path) -> tuple[str, tuple[str, ...]]:
    """Return a page's first heading and the modules that its cells are exported to."""
    if path.suffix == ".md":
        text, code = path.read_text(encoding="utf-8"), []
    else:
        cells = nbformat.read(path, as_version=4).cells
        text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
        code = [cell.source for cell in cells if cell.cell_type == "code"]
    heading = re.search(r"^# (.+)$", text, re.MULTILINE)
    if not heading:
        raise ValueError(f"{path.name} has no heading `# Title`")
    named = [re.match(r"#\|[ \t]*(?:export|default_exp)[ \t]+(\w+)", source) for source in code]
    return heading[1].strip(), tuple(dict.fromkeys(match[1] for match in named if match))


def chapters(root: Path = ROOT) -> list[Chapter]:
    """Return the pages of the book in its own order."""
    toc = yaml.safe_load((root / "_toc.yml").read_text(encoding="utf-8"))
    entries = [("", toc["root"])]
    for part in toc["parts"]:
        entries += [(part["caption"], chapter["file"]) for chapter in part["chapters"]]
    pages = [(part, page(root, name)) for part, name in entries]
    return [Chapter(part, path, *title_and_modules(path)) for part, path in pages]


def test_of(module: str) -> str:
    """Return the path of the file that tests a module."""
    return f"tests/test_{'command_line' if module == '__main__' else module}.py"


def table(root: Path = ROOT) -> str:
    """Return the map of the book as a Markdown table that links to its pages and modules."""
    lines = ["| section | chapter | writes | tested in |", "|---|---|---|---|"]
    for chapter in chapters(root)[1:]:
        if chapter.file.stem == "bibliography":
            continue
        writes = "<br>".join(f"`transformer/{module}.py`" for module in chapter.modules)
        tested = [test_of(name) for name in chapter.modules if (root / test_of(name)).exists()]
        tests = "<br>".join(f"`{name}`" for name in tested)
        title = chapter.title.removeprefix(chapter.section).strip()
        link = f"[{title}]({chapter.file.name})"
        lines.append(f"| {chapter.section} | {link} | {writes} | {tests} |")
    return "\n".join(lines) + "\n"
