"""Results, tables and the ledger: what is written down, and that it cannot be anything."""

import ast
import json
import re

import nbformat
import pytest

from transformer import results
from transformer.results import ROOT, claims, ledger, load_results, meets, settle, settled

CHAPTERS = sorted((ROOT / "chapters").glob("*.ipynb"))
NEEDED = {
    "name", "corpus", "model", "training", "parameters", "average", "steps", "source_tokens",
    "target_tokens", "seconds", "flops", "hardware", "libraries", "code", "curve", "decoding",
    "scores", "samples",
}  # fmt: skip


def settle_calls():
    """Each (chapter, claim id, node of the value) in the chapters' cells."""
    for path in CHAPTERS:
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type != "code" or "settle(" not in cell.source:
                continue
            source = re.sub(r"^%.*$", "", cell.source, flags=re.M)
            for node in ast.walk(ast.parse(source)):
                named = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
                if named and node.func.id == "settle" and isinstance(node.args[0], ast.Constant):
                    yield path.stem, node.args[0].value, node.args[1]


def off(claim: dict):
    """A value on the other side of the claim's bound from where its recorded verdict lies."""
    holds = claim.get("holds", True)
    if "at_least" in claim:
        return claim["at_least"] + (-1e-6 if holds else 1e-6)
    if "at_most" in claim:
        return claim["at_most"] + (1e-6 if holds else -1e-6)
    if not holds:
        return claim["value"]
    step = claim["within"] * 1.01 + 1e-9
    value = claim["value"]
    if isinstance(value, list):
        return [value[0] + max(step, abs(value[0]) * 1e-9), *value[1:]]
    return value + max(step, abs(value) * 1e-9)


@pytest.mark.parametrize("name", [n for n, c in claims().items() if c["kind"] != "cited"])
def test_a_perturbed_value_fails_its_claim(name):
    with pytest.raises(AssertionError, match=name):
        settle(name, off(claims()[name]), scale="a test")


def test_every_claim_that_is_not_cited_is_settled_by_a_chapter():
    wanted = {name for name, claim in claims().items() if claim["kind"] != "cited"}
    assert wanted == settled().keys()
    assert not (ledger()["verdict"] == "not settled yet").any()


def test_chapters_settle_with_a_computed_value_and_never_a_literal():
    calls = list(settle_calls())
    assert len(calls) > 20
    for chapter, name, value in calls:
        names = [node for node in ast.walk(value) if isinstance(node, ast.Name)]
        assert names, f"{chapter} settles {name} with a literal"


def test_stored_verdicts_are_the_recorded_ones():
    for name, entry in settled().items():
        expected = "holds" if claims()[name].get("holds", True) else "does not hold"
        assert entry["verdict"] == expected, name


def test_claims_are_complete_and_unambiguous():
    for name, claim in claims().items():
        assert claim.keys() >= {"id", "section", "claim", "kind"}, name
        bounds = {"value", "at_least", "at_most"} & claim.keys()
        if claim["kind"] == "cited":
            assert "command" in claim, name
        else:
            assert bounds and ("value" in bounds) == ("within" in claim), name


def test_unknown_cited_or_unscaled_claims_are_refused():
    with pytest.raises(ValueError, match="no claim 'nonsense'"):
        settle("nonsense", 1)
    with pytest.raises(ValueError, match="cited only"):
        settle("bleu-base-ende", 27.3)
    with pytest.raises(ValueError, match="at what scale"):
        settle("softmax-saturates", 0.0)


def test_a_list_of_another_length_does_not_meet_a_claim():
    claim = {"value": [8, 64, 64], "within": 0}
    assert meets(claim, [8, 64, 64]) and not meets(claim, [8, 64])


def test_reference_results_say_all_that_a_result_must_say():
    found = load_results()
    assert found.keys() >= {"grammar-en-de", "multi30k-en-de"}
    for name, result in found.items():
        assert not NEEDED - result.keys(), name
        assert len(result["corpus"]["checksum"]) == 64
        assert result["steps"] > 0 and result["seconds"] > 0 and result["flops"] > 0
        for score in result["scores"].values():
            assert "version:" in score["bleu"]["signature"]
        assert "/" not in result["corpus"]["spec"], "a path of one machine"


def test_the_readers_runs_replace_the_reference_of_their_name(tmp_path, monkeypatch):
    name, result = next(iter(load_results().items()))
    mine = {key: value for key, value in result.items() if key != "origin"} | {"steps": 7}
    (tmp_path / f"{name}.json").write_text(json.dumps(mine), encoding="utf-8")
    monkeypatch.setenv("TRANSFORMER_RESULTS", str(tmp_path))
    assert load_results()[name]["steps"] == 7 and load_results()[name]["origin"] == "yours"
    assert "(yours)" in results.our_table2().to_string()


def test_a_file_that_is_no_result_is_named(tmp_path):
    (tmp_path / "a-b.json").write_text("[]", encoding="utf-8")
    with pytest.raises(ValueError, match="a-b.json is not a result file"):
        load_results(tmp_path)


def test_the_readme_shows_the_stored_results():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert results.readme_table(text, load_results()) == text
    with pytest.raises(ValueError, match="lacks"):
        results.readme_table("no markers", {})


def test_table_2_holds_every_row_the_paper_prints():
    table = results.paper_table2()
    base = table[(table["model"] == "Transformer (base model)") & (table["pair"] == "ENDE")]
    assert base["BLEU"].item() == 27.3 and base["training FLOPs"].item() == 3.3e18
    assert len(table) == 17
