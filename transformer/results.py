# Written from chapters/using-it.ipynb by chapters/_book/export.py. Edit the chapter.
"""Results, the paper's tables, and the ledger of its claims."""

__all__ = [
    "ROOT",
    "claims",
    "meets",
    "paper_tables",
    "settle",
]

import json
import math
import os
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1] if "__file__" in globals() else Path("..").resolve()


def paper_tables() -> dict:
    """Return data/paper/tables.json: Tables 1 to 4 of the paper and its hyperparameters."""
    return json.loads((ROOT / "data/paper/tables.json").read_text(encoding="utf-8"))


def claims() -> dict[str, dict]:
    """Return data/paper/claims.yml as {id: claim}."""
    import yaml

    entries = yaml.safe_load((ROOT / "data/paper/claims.yml").read_text(encoding="utf-8"))
    return {entry["id"]: entry for entry in entries}


def meets(claim: dict, value) -> bool:
    """Whether a value, or each of a list of values, meets what the claim says."""
    if "at_least" in claim or "at_most" in claim:
        return claim.get("at_least", -math.inf) <= value <= claim.get("at_most", math.inf)
    expected, got = claim["value"], value
    if not isinstance(expected, list):
        expected, got = [expected], [value]
    if len(expected) != len(got):
        return False
    return all(abs(g - e) <= claim["within"] for g, e in zip(got, expected, strict=True))


def settle(name: str, value, scale: str | None = None) -> None:
    """Set a computed or measured value against the paper's claim `name`, and print the verdict.

    `scale` says at what size a measured claim was measured. AssertionError when a computed value
    misses the claim, or when a measured verdict is not the recorded one. ValueError for an
    unknown claim, or for a measured one without its scale.
    """
    known = claims()
    if name not in known:
        raise ValueError(f"no claim {name!r} in data/paper/claims.yml; there are: {', '.join(known)}")
    claim = known[name]
    if claim["kind"] == "measured" and not scale:
        raise ValueError(f"claim {name!r} is measured: say at what scale")
    holds = meets(claim, value)
    verdict = "holds" if holds else "does not hold"
    if holds != claim.get("holds", True):
        raise AssertionError(f"claim {name}: {verdict} with {value}, {claim}")
    print(f"claim {name} ({claim['section']}): {verdict}" + (f", at {scale}" if scale else ""))
