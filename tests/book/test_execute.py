"""Chapters are run on the CPU and stored whole, or not at all."""

from pathlib import Path

import nbformat
import pytest
from _book import execute


def write(folder: Path, name: str, *sources: str) -> Path:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(s) for s in sources])
    nbformat.write(notebook, folder / f"{name}.ipynb")
    return folder / f"{name}.ipynb"


def test_outputs_are_stored_without_times_and_the_gpu_is_hidden(tmp_path, capsys):
    path = write(
        tmp_path, "1-introduction", "import os", "print(repr(os.environ['CUDA_VISIBLE_DEVICES']))"
    )
    assert execute.main(["1-introduction", "--folder", str(tmp_path)]) == 0
    notebook = nbformat.read(path, as_version=4)
    assert [cell.execution_count for cell in notebook.cells] == [1, 2]
    assert notebook.cells[1].outputs[0].text == "''\n"
    assert [cell.metadata for cell in notebook.cells] == [{}, {}]
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert [p.name for p in tmp_path.iterdir()] == ["1-introduction.ipynb"]
    assert "1-introduction.ipynb: " in capsys.readouterr().out


def test_a_chapter_that_fails_is_left_as_it_was_and_the_next_is_run(tmp_path, capsys):
    broken = write(tmp_path, "1-introduction", "1 + 1", "assert 1 > 2, 'wrong order'")
    whole = write(tmp_path, "2-background", "1 + 1")
    before = broken.read_bytes()
    assert execute.main(["--folder", str(tmp_path)]) == 1
    assert broken.read_bytes() == before
    assert "wrong order" in capsys.readouterr().err
    assert nbformat.read(whole, as_version=4).cells[0].execution_count == 1


def test_a_name_that_is_no_chapter_is_an_error(tmp_path, capsys):
    assert execute.main(["3-9-magic", "--folder", str(tmp_path)]) == 1
    assert "there is no chapter 3-9-magic.ipynb" in capsys.readouterr().err


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = write(tmp_path, "1-introduction", "1 + 1")
    before = path.read_bytes()

    def fail(*arguments):
        raise OSError("no space left")

    monkeypatch.setattr(execute.os, "replace", fail)
    with pytest.raises(OSError, match="no space left"):
        execute.store(nbformat.v4.new_notebook(), path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["1-introduction.ipynb"]
