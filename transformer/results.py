# Written from chapters/using-it.ipynb by chapters/_book/export.py. Edit the chapter.
"""Results, the paper's tables, and the ledger of its claims."""

__all__ = [
    "VERDICT",
    "accepted",
    "claims",
    "code_version",
    "environment",
    "ledger",
    "load_results",
    "markdown_table",
    "meets",
    "our_table2",
    "paper_table2",
    "paper_tables",
    "printed_text",
    "processor",
    "readme_table",
    "scale",
    "settle",
    "settled",
    "write_result",
]

import hashlib
import json
import math
import os
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path

import torch

from transformer.checkpoints import write_atomically
from transformer.corpora import ROOT


def paper_tables() -> dict:
    """Return data/paper/tables.json: Tables 1 to 4 of the paper and its hyperparameters."""
    return json.loads((ROOT / "data/paper/tables.json").read_text(encoding="utf-8"))


def load_results(folder: Path | str | None = None) -> dict[str, dict]:
    """Return {name: result} of data/results, or of `folder`.

    Without a folder, results in $TRANSFORMER_RESULTS replace the reference runs of their name,
    and each result says in "origin" whose it is. ValueError names a file that is no result.
    """
    yours = os.environ.get("TRANSFORMER_RESULTS")
    origins = {"reference": ROOT / "data/results"} | ({"yours": Path(yours)} if yours else {})
    results = {}
    for origin, place in ({"yours": Path(folder)} if folder else origins).items():
        for path in sorted(place.glob("*.json")):
            try:
                result = json.loads(path.read_text(encoding="utf-8"))
                results[result["name"]] = result | {"origin": origin}
            except (json.JSONDecodeError, KeyError, TypeError) as error:
                raise ValueError(f"{path} is not a result file: {error!r}") from error
    return results


def write_result(path: Path | str, result: dict) -> None:
    """Write a result file, whole or not at all."""
    text = json.dumps(result, indent=1, ensure_ascii=False)
    write_atomically(Path(path), (text + "\n").encode("utf-8"))


def processor() -> str:
    """The processor's name, as well as the system tells it."""
    information = Path("/proc/cpuinfo")
    if information.exists():
        match = re.search(r"^model name\s*: (.+)$", information.read_text("utf-8"), re.MULTILINE)
        if match:
            return match[1]
    return platform.processor() or platform.machine()


def environment(device: torch.device | str = "cpu") -> dict[str, dict]:
    """Return the hardware, the library versions and the code that a run used."""
    hardware = {"cpu": processor(), "cores": os.cpu_count(), "threads": torch.get_num_threads()}
    hardware["device"] = torch.device(device).type
    if hardware["device"] == "cuda":
        hardware["gpu"] = torch.cuda.get_device_name(device)
    libraries = {"python": platform.python_version(), "torch": torch.__version__}
    for name in ("safetensors", "sentencepiece", "sacrebleu", "sacremoses"):
        libraries[name] = metadata.version(name)
    return {"hardware": hardware, "libraries": libraries, "code": code_version()}


def code_version() -> dict[str, str | None]:
    """Return the SHA-256 of the package's text, and the git commit where there is one."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "transformer").glob("*.py")):
        digest.update(path.name.encode() + path.read_bytes())
    ask = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    try:
        answer = subprocess.run(ask, capture_output=True, text=True, check=True)
        commit = answer.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = None
    return {"package_sha256": digest.hexdigest(), "commit": commit}


def paper_table2():
    """Return Table 2 as the paper prints it: BLEU on newstest2014 and training FLOPs."""
    import pandas as pd

    rows = []
    for row in paper_tables()["table2"]["rows"]:
        for pair in ("ende", "enfr"):
            flops = row[f"flops_{pair}"]
            if "Transformer" in row["model"]:  # one figure, printed under both languages
                flops = row["flops_ende"]
            if row[f"bleu_{pair}"] is not None:
                rows.append((row["model"], pair.upper(), row[f"bleu_{pair}"], flops))
    return pd.DataFrame(rows, columns=["model", "pair", "BLEU", "training FLOPs"])


def scale(result: dict) -> str:
    """Say in a few words how large a run was: parameters, sentence pairs, updates."""
    pairs = result["corpus"]["pairs"]["train"]
    millions = result["parameters"] / 1e6
    return f"{millions:.1f} M parameters, {pairs:,} pairs, {result['steps']:,} updates"


def our_table2(results: dict[str, dict] | None = None):
    """Return our rows of Table 2, one for each result, each with its scale and cost."""
    import pandas as pd

    rows = []
    for name, result in sorted((load_results() if results is None else results).items()):
        scores, hardware = result["scores"]["averaged"], result["hardware"]
        rows.append(
            {
                "run": name + (" (yours)" if result.get("origin") == "yours" else ""),
                "test set": result["corpus"]["test"],
                "scale": scale(result),
                "sacreBLEU": round(scores["bleu"]["value"], 1),
                "BLEU, lower-cased Moses": round(scores["moses_bleu"]["value"], 1),
                "perplexity (dev)": round(scores["perplexity"], 2),
                "training FLOPs": f"{result['flops']:.1e}",
                "minutes": round(result["seconds"] / 60),
                "on": hardware.get("gpu") or f"{hardware['threads']} CPU threads",
            }
        )
    return pd.DataFrame(rows)


def markdown_table(frame) -> str:
    """Return a data frame as a Markdown table."""
    rows = [list(frame.columns), ["---"] * len(frame.columns), *frame.values.tolist()]
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in rows)


def readme_table(text: str, results: dict[str, dict]) -> str:
    """Return the README with our rows of Table 2 between its two markers.

    ValueError when the markers are not there.
    """
    begin, end = "<!-- results -->", "<!-- /results -->"
    before, opened, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not opened or not closed:
        raise ValueError(f"README.md lacks {begin} or {end}")
    rows = markdown_table(our_table2(results)) if results else "Nothing yet."
    return f"{before}{begin}\n{rows}\n{end}{after}"


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

    `scale` says at what size a measured claim was measured. AssertionError when the verdict is
    not the recorded one. ValueError for an unknown claim, or a measured one without its scale.
    """
    known = claims()
    if name not in known:
        raise ValueError(f"no claim {name!r} in data/paper/claims.yml: {', '.join(known)}")
    claim = known[name]
    if claim["kind"] == "cited":
        raise ValueError(f"claim {name!r} is recorded as cited only, and a cell settles it")
    if claim["kind"] == "measured" and not scale:
        raise ValueError(f"claim {name!r} is measured: say at what scale")
    holds = meets(claim, value)
    verdict = "holds" if holds else "does not hold"
    if holds != claim.get("holds", True):
        raise AssertionError(f"claim {name}: {verdict} with {value}, but recorded is {claim}")
    print(f"claim {name} ({claim['section']}): {verdict}" + (f", at {scale}" if scale else ""))


VERDICT = re.compile(r"^claim (\S+) \(([\d.]+)\): (holds|does not hold)(?:, at (.+))?$", re.M)


def printed_text(cell: dict) -> str:
    """What a stored code cell printed."""
    parts = [output.get("text", "") for output in cell.get("outputs", [])]
    return "".join(part if isinstance(part, str) else "".join(part) for part in parts)


def settled(chapters: Path | None = None) -> dict[str, dict]:
    """Return {claim id: {chapter, verdict, scale}} from the stored outputs of the chapters."""
    found = {}
    for path in sorted((chapters or ROOT / "chapters").glob("*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            for name, _, verdict, scale in VERDICT.findall(printed_text(cell)):
                found.setdefault(name, {"chapter": path.stem, "verdict": verdict, "scale": scale})
    return found


def accepted(claim: dict) -> str:
    """Say what a value must meet to fulfil a claim: 1.0 ± 0.05, exactly 6, at most 0.2."""
    if "at_least" in claim or "at_most" in claim:
        limits = [f"at {side} {claim[f'at_{side}']}" for side in ("least", "most")
                  if f"at_{side}" in claim]  # fmt: skip
        return " and ".join(limits)
    value = claim["value"]
    return f"{value} ± {claim['within']}" if claim["within"] else f"exactly {value}"


def ledger(chapters: Path | None = None):
    """Return the ledger: each claim of the paper, how it was settled, where, and the verdict."""
    import pandas as pd

    found, rows = settled(chapters), []
    for name, claim in claims().items():
        kind = claim["kind"]
        if kind == "cited":
            verdict, where = f"to settle it: {claim['command']}", ""
        else:
            entry = found.get(name, {"verdict": "not settled yet", "chapter": "", "scale": ""})
            verdict = entry["verdict"] + (f", at {entry['scale']}" if entry["scale"] else "")
            where, kind = entry["chapter"], f"{kind}: {accepted(claim)}"
        rows.append((claim["section"], claim["claim"], kind, verdict, where))
    columns = ["section", "the paper says", "kind", "verdict", "chapter"]
    return pd.DataFrame(rows, columns=columns).sort_values("section", kind="stable")
