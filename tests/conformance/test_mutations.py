"""Faults planted in a copy of the package, each of which must turn its test red.

A test that stays green whatever happens to the code proves nothing. Each fault is one that was
reported of a widely used implementation; it is written into a copy of `transformer/` by replacing
text, and the test named beside it runs against that copy in another process.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PITFALLS = ROOT / "tests" / "conformance" / "test_pitfalls.py"


class Fault(NamedTuple):
    module: str
    right: str
    wrong: str
    test: str


FAULTS = {
    "pre-norm where the paper has post-norm": Fault(
        "stacks",
        "self.layer_norm(x + self.dropout(function(x)))",
        "x + self.dropout(function(self.layer_norm(x)))",
        "test_post_norm_normalises_the_sum_and_pre_norm_the_input",
    ),
    "a final norm after a post-norm stack": Fault(
        "stacks",
        "return nn.Identity()",
        "pass",
        "test_default_is_post_norm_without_a_final_norm",
    ),
    "NaN in a row whose keys are all masked": Fault(
        "attention",
        "return mask | dead, dead",
        "return mask, torch.zeros_like(dead)",
        "test_a_row_without_keys_gives_zeros_and_finite_gradients",
    ),
    "NaN that is made there and overwritten": Fault(
        "attention",
        "return mask | dead, dead",
        "return mask, dead",
        "test_a_row_without_keys_makes_no_nan_on_the_way",
    ),
    "silent uniform weights in such a row": Fault(
        "attention",
        "output.masked_fill(dead, 0.0)",
        "output",
        "test_a_row_without_keys_gives_zeros_and_finite_gradients",
    ),
    "padding masked on queries": Fault(
        "masks",
        "[:, None, None, :]",
        "[:, None, :, None]",
        "test_pads_are_not_hidden_as_queries",
    ),
    "a pad id of 0 assumed": Fault(
        "masks",
        "tokens != pad_id",
        "tokens != 0",
        "test_pads_are_hidden_as_keys_whatever_their_id",
    ),
    "an inverted mask": Fault(
        "attention",
        "masked_fill(~mask, -math.inf)",
        "masked_fill(mask, -math.inf)",
        "test_true_means_may_attend",
    ),
    "the next token in sight": Fault(
        "masks",
        "tril(diagonal=past)",
        "tril(diagonal=past + 1)",
        "test_a_future_token_never_changes_an_earlier_output",
    ),
    "the future in sight in eval mode only": Fault(
        "model",
        "causal_mask(target.size(1), past, target.device)",
        "(causal_mask(target.size(1), past, target.device) | (not self.training))",
        "test_a_future_token_never_changes_an_earlier_output",
    ),
    "-1e9, which half precision cannot hold": Fault(
        "attention",
        "-math.inf",
        "-1e9",
        "test_masks_work_in_every_precision",
    ),
    "heads that do not divide d_model let through": Fault(
        "attention",
        "d_model % heads:",
        "False:",
        "test_attention_alone_refuses_heads_that_do_not_divide_the_width",
    ),
    "positions computed in half precision": Fault(
        "encoding",
        "torch.arange(length, dtype=torch.float64",
        "torch.arange(length, dtype=torch.bfloat16",
        "test_positions_are_computed_exactly_and_cast_last",
    ),
    "positions that restart at 0 in step-by-step decoding": Fault(
        "model",
        "start=past",
        "start=0",
        "test_step_decoding_equals_teacher_forcing_with_and_without_a_cache",
    ),
    "dropout left on at 0": Fault(
        "attention",
        "self.dropout if self.training",
        "0.1 if self.training",
        "test_no_dropout_is_exact_determinism_in_training",
    ),
    "tied weights that are not tied": Fault(
        "model",
        "self.generator = ",
        "self.generator = Embeddings(c.vocab_size, c.d_model) if True else ",
        "test_tied_weights_are_one_tensor_in_memory_in_the_count_and_after_an_update",
    ),
    "logits scaled in decoding and not in training": Fault(
        "embeddings",
        "F.linear(x, self.table.weight)",
        "F.linear(x, self.table.weight) * (1.0 if self.training else self.scale)",
        "test_decoding_gives_the_logits_of_training",
    ),
    "a cache not reordered with the beams": Fault(
        "attention",
        "self.key, self.value = self.key[rows], self.value[rows]",
        "self.key, self.value = self.key[: len(rows)], self.value[: len(rows)]",
        "test_a_cache_is_reordered_with_its_beams",
    ),
    "one sentence's padding applied to the whole batch": Fault(
        "model",
        "padding_mask(source, ",
        "padding_mask(source[:1], ",
        "test_a_sentence_gets_the_same_logits_alone_batched_and_shuffled",
    ),
}


def copy_package(folder: Path) -> Path:
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "transformer", folder / "transformer", ignore=ignored)
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    return folder


def plant(fault: Fault, folder: Path) -> None:
    path = folder / "transformer" / f"{fault.module}.py"
    text = path.read_text(encoding="utf-8")
    assert fault.right in text, f"{path.name} no longer holds {fault.right!r}: adapt this fault"
    path.write_text(text.replace(fault.right, fault.wrong), encoding="utf-8")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory) -> dict[str, tuple[int, str]]:
    """Pytest's status and output for each faulty copy, and under "" for one without a fault."""
    folder = tmp_path_factory.mktemp("copies")
    jobs = []
    for number, name in enumerate(["", *FAULTS]):
        copy = copy_package(folder / str(number))
        tests = {FAULTS[name].test} if name else {fault.test for fault in FAULTS.values()}
        if name:
            plant(FAULTS[name], copy)
        jobs.append([str(copy), [f"{PITFALLS}::{test}" for test in sorted(tests)]])
    (folder / "jobs.json").write_text(json.dumps(jobs), encoding="utf-8")
    settings = {
        "PYTHONPATH": str(ROOT / "tests"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "OMP_NUM_THREADS": "1",
    }
    script = str(PITFALLS.with_name("run_copies.py"))
    done = subprocess.run(
        [sys.executable, script, "jobs.json", "results.json"],
        cwd=folder, env={**os.environ, **settings}, capture_output=True,
        text=True, encoding="utf-8",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    return dict(zip(["", *FAULTS], map(tuple, results), strict=True))


def test_without_a_fault_the_copy_is_green(outcomes):
    status, output = outcomes[""]
    assert status == 0, f"{status}\n{output}"


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_turns_its_test_red(outcomes, name):
    status, output = outcomes[name]
    # 1 is pytest's status for failed tests; another one would be red for another reason.
    assert status == 1 and "1 failed" in output and FAULTS[name].test in output, output
