"""Write the package `transformer/` from the chapters, or check that it is what they say.

    python chapters/_book/export.py            write every module
    python chapters/_book/export.py --check    write nothing, fail on any difference

A code cell is exported when its first line is `#| export module`. Under `#| default_exp module`,
which may stand once in a chapter, `#| export` alone means that module. The first exported cell of
a module opens with the module's docstring. The rules are few because every one of them is checked:
what the exporter does not understand is an error that names the chapter and the cell.
"""

import argparse
import ast
import os
import re
import sys
import tempfile
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parents[2]
DIRECTIVE = re.compile(r"^#\|\s*(\w+)(?:\s+(\w+))?\s*$")


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
        if word == "default_exp":
            if default or not name:
                raise ExportError(f"{where}: `#| default_exp` stands once and names a module")
            default = name
        else:
            module = name or default
            if not module:
                raise ExportError(f"{where}: `#| export` before `#| default_exp` names no module")
        lines.pop(0)
    for line in lines:
        if line.lstrip().startswith(("#|", "# |")):
            raise ExportError(f"{where}: directive {line.strip()!r} is not at the top of its cell")
    return module, default, "\n".join(lines).strip("\n")


def check_code(code: str, where: str) -> None:
    """Refuse what would not survive outside a notebook: magics, syntax errors, relative imports."""
    magic = next((line for line in code.split("\n") if re.match(r"\s*[%!]|.*\?$", line)), None)
    try:
        tree = ast.parse(code)
    except SyntaxError as error:
        reason = f"a magic: {magic.strip()!r}" if magic else f"not Python: {error}"
        raise ExportError(f"{where}: an exported cell holds {reason}") from error
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            raise ExportError(f"{where}: relative import; write `from transformer.x import y`")


def read_chapter(path: Path) -> dict[str, list[str]]:
    """Return {module: [code of its exported cells]} of one chapter, in order."""
    modules: dict[str, list[str]] = {}
    default = None
    code_cells = (c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code")
    for number, cell in enumerate(code_cells, 1):
        where = f"{path.name}, code cell {number}"
        module, default, code = cell_module(cell.source, default, where)
        if module:
            check_code(code, where)
            if module not in modules and ast.get_docstring(ast.parse(code)) is None:
                raise ExportError(f"{where}: the first cell of {module} must open with a docstring")
            modules.setdefault(module, []).append(code)
    return modules


def public_names(module: str, tree: ast.Module) -> list[str]:
    """Names for `__all__`: what is defined at the top; in `__init__`, what is imported too."""
    names = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
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
    body = [text for text in [rest, *cells[1:]] if text]
    return f"{header}{docstring}\n\n__all__ = [\n{names}]\n\n" + "\n\n\n".join(body) + "\n"


def build(chapters: Path) -> dict[str, str]:
    """Return {file name: text} of the whole package."""
    origin: dict[str, str] = {}
    files = {}
    for path in sorted(chapters.glob("*.ipynb")):
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
    lines = [f"{name}: no chapter writes it" for name in sorted(found.keys() - files.keys())]
    lines += [f"{name}: not exported yet" for name in sorted(files.keys() - found.keys())]
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
