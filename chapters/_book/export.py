"""Write the package `transformer/` from the chapters, or check that it is what they say.

    python chapters/_book/export.py            write every module
    python chapters/_book/export.py --check    write nothing, fail on any difference

A code cell is exported when its first line is `#| export module`. Under `#| default_exp module`,
which may stand once in a chapter, `#| export` alone means that module. The first exported cell of
a module opens with the module's docstring, and a module belongs to one chapter. The rules are few
because every one of them is checked: what the exporter does not understand is an error that names
the chapter and the cell, never a cell silently lost.
"""

import argparse
import ast
import keyword
import os
import re
import sys
import tempfile
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parents[2]
DIRECTIVE = re.compile(r"^#\|\s*(\w+)(?:\s+(\w+))?\s*$")
# What looks like a directive and is none: one in the wrong place, or without its bar.
STRAY = re.compile(
    r"^\s*#\s*\||#\s*\|\s*(export|default_exp)\b|^\s*#\s*(export|default_exp)(\s+\w+)?\s*$"
)
MAGIC = re.compile(r"^\s*[%!?]|\?\s*$")


class ExportError(Exception):
    """A chapter that cannot be exported; the message names the chapter and the cell."""


def cell_module(source: str, default: str | None, where: str) -> tuple[str | None, str | None, str]:
    """Return (module this cell is exported to or None, default module from here on, code)."""
    lines = source.split("\n")
    module = None
    while lines and lines[0].startswith("#|"):
        match = DIRECTIVE.match(lines[0])
        if not match or match[1] not in ("export", "default_exp"):
            raise ExportError(f"{where}: unknown directive {lines[0]!r}")
        word, name = match.groups()
        if name and (not name.isidentifier() or keyword.iskeyword(name)):
            raise ExportError(f"{where}: {name!r} cannot be the name of a module")
        if word == "default_exp":
            if default or not name:
                raise ExportError(f"{where}: `#| default_exp` stands once and names a module")
            default = name
        else:
            if module:
                raise ExportError(f"{where}: a cell is exported once, to one module")
            module = name or default
            if not module:
                raise ExportError(f"{where}: `#| export` before `#| default_exp` names no module")
        lines.pop(0)
    for line in lines:
        if STRAY.search(line):
            raise ExportError(f"{where}: directive {line.strip()!r} is not at the top of its cell")
    return module, default, "\n".join(lines).strip("\n")


def check_code(code: str, where: str) -> None:
    """Refuse what would not survive outside a notebook: magics, syntax errors, relative imports."""
    try:
        compile(code, where, "exec", dont_inherit=True)
    except SyntaxError as error:
        magic = next((line for line in code.split("\n") if MAGIC.search(line)), None)
        reason = f"a magic: {magic.strip()!r}" if magic else f"not Python: {error.msg}"
        raise ExportError(f"{where}: an exported cell holds {reason}") from error
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.level:
            raise ExportError(f"{where}: relative import; write `from transformer.x import y`")
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            raise ExportError(f"{where}: `from __future__` cannot be exported")
        if isinstance(node, ast.Name) and node.id == "get_ipython":
            raise ExportError(f"{where}: an exported cell holds a magic: get_ipython")


def check_redefinitions(code: str, seen: set[str], where: str) -> None:
    """Refuse a function or class that an earlier cell of the same module has already defined."""
    definitions = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    for node in ast.parse(code).body:
        if isinstance(node, definitions):
            if node.name in seen:
                raise ExportError(f"{where}: {node.name} is defined twice in its module")
            seen.add(node.name)


def read_chapter(path: Path) -> dict[str, list[str]]:
    """Return {module: [code of its exported cells]} of one chapter, in order."""
    modules: dict[str, list[str]] = {}
    names: dict[str, set[str]] = {}
    default, number = None, 0
    try:
        cells = nbformat.read(path, as_version=4).cells
    except Exception as error:  # nbformat raises whatever its parsers raise
        raise ExportError(f"{path.name} is not a readable notebook: {error!r}") from error
    for cell in cells:
        source = cell.source.replace("\r\n", "\n")
        if cell.cell_type != "code":
            if source.lstrip().startswith("#|"):
                first = source.lstrip().split("\n")[0]
                raise ExportError(f"{path.name}: {first!r} stands in a {cell.cell_type} cell")
            continue
        number += 1
        where = f"{path.name}, code cell {number}"
        module, default, code = cell_module(source, default, where)
        if not module:
            continue
        check_code(code, where)
        check_redefinitions(code, names.setdefault(module, set()), where)
        if module not in modules and ast.get_docstring(ast.parse(code)) is None:
            raise ExportError(f"{where}: the first cell of {module} must open with a docstring")
        modules.setdefault(module, []).append(code)
    return modules


def public_names(module: str, tree: ast.Module) -> list[str]:
    """Names for `__all__`: what is defined at the top; in `__init__`, what is imported too."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            parts = [part for target in targets for part in ast.walk(target)]
            stored = [part for part in parts if isinstance(getattr(part, "ctx", None), ast.Store)]
            names |= {part.id for part in stored if isinstance(part, ast.Name)}
        elif module == "__init__" and isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    return sorted(name for name in names if not name.startswith("_"))


def render(module: str, chapter: str, cells: list[str]) -> str:
    """Return the text of a module: header, docstring, `__all__`, then the cells."""
    tree = ast.parse("\n\n".join(cells))
    end = ast.parse(cells[0]).body[0].end_lineno
    first = cells[0].split("\n")
    docstring, rest = "\n".join(first[:end]), "\n".join(first[end:]).strip("\n")
    header = f"# Written from chapters/{chapter} by chapters/_book/export.py. Edit the chapter.\n"
    names = "".join(f'    "{name}",\n' for name in public_names(module, tree))
    listed = f"__all__ = [\n{names}]" if names else "__all__ = []"
    body = "\n\n\n".join(text for text in [rest, *cells[1:]] if text)
    return "\n\n".join(text for text in [header + docstring, listed, body] if text) + "\n"


def chapter_files(chapters: Path) -> list[Path]:
    """Return the chapters; hidden files are unfinished ones and folders hold copies."""
    found = sorted(path for path in chapters.glob("*.ipynb") if not path.name.startswith("."))
    if not found:
        raise ExportError(f"no chapter in {chapters}")
    return found


def build(chapters: Path) -> dict[str, str]:
    """Return {file name: text} of the whole package."""
    origin: dict[str, str] = {}
    files = {}
    for path in chapter_files(chapters):
        for module, cells in read_chapter(path).items():
            if module in origin:
                both = f"{origin[module]} and {path.name}"
                raise ExportError(f"module {module} is written by two chapters: {both}")
            origin[module] = path.name
            files[f"{module}.py"] = render(module, path.name, cells)
    return files


def write_atomically(path: Path, text: str) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.chmod(temporary, 0o644)
    os.replace(temporary, path)


def differences(files: dict[str, str], package: Path) -> list[str]:
    """Say for each module how the package differs from the chapters."""
    found = {path.name: path.read_text(encoding="utf-8") for path in package.glob("*.py")}
    extra, missing = sorted(found.keys() - files.keys()), sorted(files.keys() - found.keys())
    lines = [f"{name}: no chapter writes it; delete it" for name in extra]
    lines += [f"{name}: not exported yet" for name in missing]
    both = sorted(files.keys() & found.keys())
    return lines + [f"{n}: differs from its chapter" for n in both if files[n] != found[n]]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing, fail on drift")
    parser.add_argument("--root", type=Path, default=ROOT, help="the project's folder")
    options = parser.parse_args(arguments)
    package = options.root / "transformer"
    try:
        files = build(options.root / "chapters")
    except ExportError as error:
        print(f"export: {error}", file=sys.stderr)
        return 1
    if not options.check:
        package.mkdir(exist_ok=True)
        for name, text in files.items():
            if not (package / name).exists() or (package / name).read_text("utf-8") != text:
                write_atomically(package / name, text)
                print(f"wrote transformer/{name}")
    problems = differences(files, package)
    for line in problems:
        print(f"export: transformer/{line}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
