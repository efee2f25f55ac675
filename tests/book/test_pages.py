"""The rendered book: built without a warning, whole, linked, and free of the network."""

import html
import html.parser
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from _book import contents

ROOT = Path(__file__).resolve().parents[2]
REMOTE = re.compile(r"^(?:https?:)?//")
# What a browser fetches by itself when it opens a page; a plain link it only follows when asked.
FETCHED = {
    "script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src",
    "embed": "src", "object": "data", "link": "href",
}  # fmt: skip


class Page(html.parser.HTMLParser):
    """What the tests ask of a page: resources, links, ids, scripts."""

    def __init__(self, path: Path):
        super().__init__()
        self.path, self.resources, self.links = path, [], []
        self.ids, self.scripts, self.inside = set(), [], False
        self.text = path.read_text(encoding="utf-8")
        self.feed(self.text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if "id" in attributes:
            self.ids.add(attributes["id"])
        if tag in FETCHED and attributes.get(FETCHED[tag]):
            self.resources.append(attributes[FETCHED[tag]])
        if tag == "a" and attributes.get("href"):
            self.links.append(attributes["href"])
        self.inside = tag == "script"

    def handle_data(self, data):
        if self.inside:
            self.scripts.append(data)


@pytest.fixture(scope="session")
def book(tmp_path_factory) -> dict[str, Page]:
    """The whole book, built once from the stored outputs; {page: its content}."""
    output = tmp_path_factory.mktemp("book")
    program = "from jupyter_book.cli.main import main; main()"
    options = ["-W", "-n", "--all", "--keep-going", "--path-output", str(output)]
    done = subprocess.run(
        [sys.executable, "-c", program, "build", str(ROOT), *options],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NO_COLOR": "1"},
    )
    warnings = re.findall(r".*(?:WARNING|ERROR).*", done.stdout + done.stderr)
    assert done.returncode == 0, "\n".join(warnings or [done.stderr[-3000:]])
    built = output / "_build" / "html"
    paths = [path for path in built.rglob("*.html") if "_static" not in path.parts]
    return {path.relative_to(built).as_posix(): Page(path) for path in paths}


def test_every_chapter_and_every_module_has_a_page(book):
    chapters = {f"chapters/{chapter.file.stem}.html" for chapter in contents.chapters(ROOT)}
    modules = {f"modules/{path.stem}.html" for path in (ROOT / "transformer").glob("*.py")}
    assert chapters | modules <= set(book)


def test_no_page_fetches_anything_from_the_network(book):
    for name, page in book.items():
        assert [url for url in page.resources if REMOTE.match(url)] == [], name
        urls = [
            url for script in page.scripts for url in re.findall(r"[\"'](https?://[^\"']+)", script)
        ]
        assert urls == [], name


def test_no_style_sheet_fetches_anything_from_the_network(book):
    sheets = {
        page.path.parent / url.split("?")[0] for page in book.values() for url in page.resources
    }
    sheets = {sheet.resolve() for sheet in sheets if sheet.suffix == ".css"}
    assert len(sheets) > 3
    for sheet in sheets:
        text = sheet.read_text(encoding="utf-8")
        assert re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//[^)]*", text) == [], sheet.name


def test_every_link_and_every_resource_inside_the_book_exists(book):
    pages = {page.path.resolve(): page for page in book.values()}
    for name, page in book.items():
        for url in page.resources + page.links:
            if re.match(r"^(?:[a-z]+:|//)", url):
                continue
            file, _, fragment = url.partition("#")
            target = (
                (page.path.parent / file.split("?")[0]).resolve() if file else page.path.resolve()
            )
            assert target.exists(), f"{name} leads to {url}"
            if fragment and target in pages:
                assert fragment in pages[target].ids, f"{name} leads to {url}"


def test_exported_cells_are_labelled_and_directives_are_not_shown(book):
    found = 0
    for chapter in contents.chapters(ROOT):
        if chapter.file.suffix != ".ipynb":
            continue
        cells = nbformat.read(chapter.file, as_version=4).cells
        sources = [cell.source for cell in cells if cell.cell_type == "code"]
        exported = [source for source in sources if re.match(r"#\|\s*export\b", source)]
        page = book[f"chapters/{chapter.file.stem}.html"]
        labels = re.findall(
            r'<p class="writes">writes <a [^>]*href="\.\./modules/(\w+)\.html#', page.text
        )
        assert len(labels) == len(exported), page.path.name
        assert set(labels) == set(chapter.modules), page.path.name
        shown = re.sub(r"<[^>]+>", "", page.text)
        assert not re.search(r"^#\|", shown, re.MULTILINE), page.path.name
        found += len(labels)
    assert found > 10


def test_a_label_leads_to_the_lines_that_its_cell_wrote(book):
    page = book["chapters/3-2-attention.html"]
    cells = re.findall(
        r'<p class="writes">.*?modules/(\w+)\.html#line-(\d+)".*?<pre>(.*?)</pre>', page.text, re.S
    )
    for module, line, shown in cells[1:]:
        code = html.unescape(re.sub(r"<[^>]+>", "", shown)).strip("\n").split("\n")
        source = (ROOT / "transformer" / f"{module}.py").read_text(encoding="utf-8").split("\n")
        assert source[int(line) - 1 : int(line) - 1 + len(code)] == code
    assert len(cells) > 1


def test_figures_are_numbered_through_the_book(book):
    numbers = []
    for chapter in contents.chapters(ROOT):
        page = book[f"chapters/{chapter.file.stem}.html"]
        captions = re.findall(r"<figcaption>.*?</figcaption>", page.text, re.S)
        found = [re.search(r'class="caption-number">Fig\. (\d+)', caption) for caption in captions]
        assert all(found), page.path.name
        numbers += [int(match[1]) for match in found]
    assert numbers == list(range(1, len(numbers) + 1)), "in the order of the pages"
    assert len(numbers) > 5


def test_pages_with_formulas_load_the_local_mathjax(book):
    with_math = [page for page in book.values() if 'class="math' in page.text]
    assert with_math
    for page in with_math:
        scripts = [url for url in page.resources if "mathjax" in url]
        assert len(scripts) == 1 and not REMOTE.match(scripts[0]), page.path.name
        assert (page.path.parent / scripts[0].split("?")[0]).stat().st_size > 1_000_000


CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)


@pytest.mark.skipif(not CHROMIUM, reason="no Chromium here to open a page with")
def test_a_browser_without_network_draws_every_formula_from_the_disk(book, tmp_path):
    flags = (
        "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
        "--disable-background-networking --disable-component-update --virtual-time-budget=20000"
    )
    command = [CHROMIUM, *flags.split(), "--host-resolver-rules=MAP * ~NOTFOUND"]
    drawn = 0
    for name, page in book.items():
        formulas = len(re.findall(r'class="math[ "]', page.text))
        if not formulas:
            continue
        call = [*command, f"--user-data-dir={tmp_path}", "--dump-dom", page.path.as_uri()]
        done = subprocess.run(call, capture_output=True, text=True, check=False, timeout=120)
        assert done.stdout.count("<mjx-container") >= formulas, name
        assert not re.search(r'<g [^>]*data-mml-node="merror"', done.stdout), name
        drawn += formulas
    assert drawn > 20
