"""What this book needs of Sphinx beyond Jupyter Book: labelled cells, module pages, local formulas.

- A code cell that opens with `#| export module` is shown without that line, under the label
  "writes transformer/module.py", which leads to the module's page at the lines the cell wrote.
- Every module has such a page, made from the file in `transformer/`; where the text names that file
  in code font, it leads there too.
- Formulas are drawn by a copy of MathJax inside the book, so that its pages need no network and
  open straight from a disk. The SVG flavour is used because it loads no fonts: some browsers refuse
  fonts to pages read from a disk.
"""

import re
import shutil
from importlib.util import find_spec
from pathlib import Path

from docutils import nodes
from export import DIRECTIVE, cell_module
from sphinx.application import Sphinx
from sphinx.util import logging

logger = logging.getLogger(__name__)
MATHJAX = "mathjax/tex-svg.js"


class written_to(nodes.Element):  # noqa: N801 - docutils names its nodes in lower case
    """Stands above an exported cell until the link to its module's page can be resolved."""


def package(app: Sphinx) -> Path:
    """Return the folder of the modules that the chapters wrote."""
    return Path(app.srcdir) / "transformer"


def first_line(source: str, code: str) -> int:
    """Return the line of the module at which an exported cell begins, 1 when it was reshaped."""
    code = code.strip("\n")
    at = source.find(code)
    if at < 0:  # the first cell: the exporter puts `__all__` between its docstring and its imports
        return 1
    return source.count("\n", 0, at) + 1


def label_cells(app: Sphinx, doctree: nodes.document) -> None:
    """Take the directive lines out of the cells and put a label above each exported one."""
    default = None
    for cell in list(doctree.findall(nodes.container)):
        if "cell_input" not in cell["classes"]:
            continue
        for block in list(cell.findall(nodes.literal_block)):
            if not DIRECTIVE.match(block.astext().split("\n")[0]):
                continue
            module, default, code = cell_module(block.astext(), default, app.env.docname)
            if not code:  # a cell that only names the chapter's module has nothing to show
                outer = cell.parent
                outer.remove(cell)
                if not outer.children:
                    outer.parent.remove(outer)
                break
            shown = nodes.literal_block(code, code, **block.attributes)
            shown.source, shown.line = block.source, block.line
            block.replace_self([written_to(module=module, code=code), shown] if module else shown)


def link_labels(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Turn each label into a link to the lines of the module's page, each file name into one."""
    for label in list(doctree.findall(written_to)):
        module = label["module"]
        path = package(app) / f"{module}.py"
        name = nodes.literal(text=f"transformer/{module}.py")
        if path.exists():
            line = first_line(path.read_text(encoding="utf-8"), label["code"])
            name = module_link(app, docname, module, name, f"#line-{line}")
        else:
            logger.warning("%s writes transformer/%s.py, which is not exported", docname, module)
        label.replace_self(nodes.paragraph("", "", nodes.Text("writes "), name, classes=["writes"]))
    for literal in list(doctree.findall(nodes.literal)):
        match = re.fullmatch(r"transformer/(\w+)\.py", literal.astext())
        inside = isinstance(literal.parent, nodes.reference)
        if match and not inside and (package(app) / f"{match[1]}.py").exists():
            literal.replace_self(module_link(app, docname, match[1], literal.deepcopy()))


def module_link(
    app: Sphinx, docname: str, module: str, name: nodes.Node, anchor: str = ""
) -> nodes.reference:
    """Return `name` as a link from a page of the book to the page of a module."""
    uri = app.builder.get_relative_uri(docname, f"modules/{module}") + anchor
    return nodes.reference("", "", name, refuri=uri, internal=True)


def module_pages(app: Sphinx):
    """Yield one page for each module: its source, under a link to the chapter that wrote it."""
    if app.builder.format != "html":
        return
    for path in sorted(package(app).glob("*.py")):
        source = path.read_text(encoding="utf-8")
        highlighted = app.builder.highlighter.highlight_block(
            source, "python", lineanchors="line", linenos=False
        )
        page = f"modules/{path.stem}"
        heading = f"<h1>transformer/{path.name}</h1>\n{chapter_link(app, page, source)}"
        body = f'{heading}<div class="module-source">{highlighted}</div>'
        yield page, {"title": f"transformer/{path.name}", "body": body}, "page.html"


def chapter_link(app: Sphinx, page: str, source: str) -> str:
    """Return a sentence that leads to the chapter named in the module's first line."""
    first = source.split("\n")[0]
    chapter = first.partition("chapters/")[2].split(".ipynb")[0]
    docname = f"chapters/{chapter}"
    if not chapter or docname not in app.env.all_docs:
        return ""
    uri = app.builder.get_relative_uri(page, docname)
    title = app.env.titles[docname].astext()
    return f'<p>Written from the chapter <a href="{uri}">{title}</a>; edit it there.</p>\n'


def copy_mathjax(app: Sphinx) -> None:
    """Copy the one file that draws the formulas out of the installed package."""
    if app.builder.format != "html":
        return
    package_spec = find_spec("sphinx-mathjax-offline")
    source = Path(package_spec.submodule_search_locations[0]) / "static" / MATHJAX
    target = Path(app.outdir) / "_static" / MATHJAX
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def setup(app: Sphinx) -> dict:
    app.add_node(written_to)
    app.connect("config-inited", lambda app, config: setattr(config, "mathjax_path", MATHJAX))
    app.connect("builder-inited", copy_mathjax)
    app.connect("doctree-read", label_cells)
    app.connect("doctree-resolved", link_labels)
    app.connect("html-collect-pages", module_pages)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
