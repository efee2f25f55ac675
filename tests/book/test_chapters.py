"""What a stored chapter holds: outputs of every cell, numbered figures, no second truth."""

import re
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = sorted(p for p in (ROOT / "chapters").glob("*.ipynb") if not p.name.startswith("."))
# Chapters that report results: none of their Markdown tables may hold a number.
RESULTS = re.compile(r"(5-5|6-|using-it|ledger|full-training|abstract)")
MEASURES = re.compile(
    r"\b(bleu|perplexity|ppl|accuracy|loss|f1|score|seconds|minutes|flops)\b", re.I
)


@pytest.fixture(params=CHAPTERS, ids=lambda path: path.stem)
def chapter(request):
    notebook = nbformat.read(request.param, as_version=4)
    notebook.path = request.param
    return notebook


def code_cells(notebook):
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [(number, cell) for number, cell in enumerate(cells, 1) if cell.source.strip()]


def tags(cell) -> list[str]:
    return cell.metadata.get("tags", [])


def test_every_cell_was_run_in_order(chapter):
    """nbval passes a cell that was never run, so that a stripped chapter would be green."""
    counts = [cell.execution_count for _, cell in code_cells(chapter)]
    assert counts == sorted(range(1, len(counts) + 1)), "run it: make execute CHAPTERS=..."


def test_no_cell_ends_in_an_error_or_on_stderr(chapter):
    for number, cell in code_cells(chapter):
        for output in cell.outputs:
            if "raises-exception" not in tags(cell):
                assert output.output_type != "error", f"cell {number}: {output.evalue}"
            if "nbval-ignore-output" not in tags(cell):
                assert output.get("name") != "stderr", f"cell {number}: {output.text[:200]}"


def test_outputs_bear_nothing_of_the_machine(chapter):
    for number, cell in code_cells(chapter):
        assert "execution" not in cell.metadata, f"cell {number} stores its times"
        for output in cell.outputs:
            path = re.search(r"(?<![\w.])/(?:home|root|tmp|Users)/[\w./-]+", shown(output))
            address = re.search(r"\b0x[0-9a-f]{8,}", shown(output))
            assert not path, f"cell {number} prints {path[0]}"
            assert not address, f"cell {number} prints {address[0]}"


def shown(output) -> str:
    """Return the text of an output that a page shows: the plain one only where no better exists."""
    data = output.get("data", {})
    rich = [kind for kind in ("text/html", "text/markdown", "image/png") if kind in data]
    return output.get("text", "") + data.get(rich[0] if rich else "text/plain", "")


def test_a_figure_is_all_its_cell_shows(chapter):
    """A cell that ends in a plot call, and not in plt.show(), stores the call's repr as well."""
    for number, cell in code_cells(chapter):
        images = [o for o in cell.outputs if "image/png" in o.get("data", {})]
        results = [o for o in cell.outputs if o.output_type == "execute_result"]
        reprs = [o.data.get("text/plain", "") for o in results if "image/png" not in o.data]
        stray = [text for text in reprs if re.match(r"[\[(<]*(<|Text\(|matplotlib)", text)]
        assert not (images and stray), f"cell {number}: end it with plt.show()"


def test_every_figure_has_a_name_and_a_caption(chapter):
    for number, cell in code_cells(chapter):
        if "remove-output" in tags(cell) or "remove-cell" in tags(cell):
            continue
        if any("image/png" in output.get("data", {}) for output in cell.outputs):
            figure = cell.metadata.get("mystnb", {}).get("figure", {})
            assert figure.get("name", "").startswith("fig-"), f"cell {number}: {figure}"
            assert len(figure.get("caption", "")) > 20, f"cell {number}: {figure}"


def test_names_of_figures_are_given_once():
    names = []
    for path in CHAPTERS:
        for cell in nbformat.read(path, as_version=4).cells:
            figure = cell.metadata.get("mystnb", {}).get("figure", {})
            names += [figure["name"]] if "name" in figure else []
    assert sorted(names) == sorted(set(names))


def test_a_chapter_stays_small(chapter):
    assert chapter.path.stat().st_size < 1_500_000


def test_markdown_tables_hold_no_results(chapter):
    faults = numbers_in_tables(markdown(chapter), everywhere=bool(RESULTS.match(chapter.path.stem)))
    assert not faults, "results are outputs of cells: " + "; ".join(faults)


def markdown(notebook) -> str:
    return "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")


def numbers_in_tables(text: str, everywhere: bool) -> list[str]:
    """Return the rows with a number, of all Markdown tables or of those headed by a measure."""
    faults = []
    for table in re.findall(r"(?:^[ \t]*\|.*\n?)+", text, re.MULTILINE):
        header, *rows = table.strip().split("\n")
        if everywhere or MEASURES.search(header):
            bare = [re.sub(r"`[^`]*`|\$[^$]*\$|\]\([^)]*\)|\{[^}]*\}", "", row) for row in rows]
            faults += [
                row.strip() for row, left in zip(rows, bare, strict=True) if re.search(r"\d", left)
            ]
    return faults


def test_the_search_for_results_in_tables_finds_them():
    table = "| model | BLEU |\n|---|---|\n| ours | 32.9 |\n| theirs | `1` |\n"
    assert numbers_in_tables(f"Text.\n\n{table}\nMore.", everywhere=False) == ["| ours | 32.9 |"]
    assert numbers_in_tables(table.replace("BLEU", "value"), everywhere=False) == []
    assert numbers_in_tables(table.replace("BLEU", "value"), everywhere=True) == ["| ours | 32.9 |"]
