"""The training loop: same bits after a kill, honest accumulation, clean stops, a log that lasts."""

import errno
import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from transformer import training
from transformer.batches import Batches, collate
from transformer.checkpoints import list_checkpoints
from transformer.loss import smoothed_cross_entropy
from transformer.model import Transformer, TransformerConfig
from transformer.schedule import learning_rate
from transformer.training import (
    TrainingConfig,
    accumulate_gradients,
    choose_precision,
    read_log,
    train,
)

PAD, BOS, EOS, VOCAB = 3, 0, 1, 30
SETTINGS = TrainingConfig(
    steps=6, warmup_steps=4, scale=0.2, max_tokens=64, accumulate=2, seed=5,
    log_every=1, evaluate_every=100, checkpoint_every=3, keep=10,
)


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny models gain nothing from a second thread, and a busy machine makes it cost."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def new_model(seed=0, **changes):
    fields = {
        "vocab_size": VOCAB, "layers": 1, "d_model": 16, "d_ff": 32, "heads": 2, "dropout": 0.2,
        "pad_id": PAD, "bos_id": BOS, "eos_id": EOS,
    }
    return Transformer(TransformerConfig(**(fields | changes)), torch.Generator().manual_seed(seed))


def new_pairs(count=60, seed=0):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, 9, (count,), generator=generator).tolist()
    rows = [torch.randint(4, VOCAB, (n,), generator=generator).tolist() for n in lengths]
    return [(row, row[::-1]) for row in rows]


def new_batches(count=60):
    """About seven batches an epoch, so that six updates of two end inside the second one."""
    return Batches(new_pairs(count), 64, PAD, BOS, EOS, seed=1)


def bits(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def same(a, b):
    return all(map(torch.equal, bits(a), bits(b)))


def quiet(*arguments, **options):
    return train(*arguments, bar=False, **options)


class Watched:
    """Batches that call a function before each batch number `at`, counted over the run."""

    def __init__(self, at, action, batches=None):
        self.batches, self.at, self.action, self.count = batches or new_batches(), at, action, 0

    def epoch(self, number, start=0):
        for batch in self.batches.epoch(number, start):
            self.count += 1
            yield (self.count == self.at and self.action(batch)) or batch


# Gradients


def gradients(model, batches, **options):
    model.zero_grad()
    losses = accumulate_gradients(model, batches, 0.1, **options)
    return [parameter.grad.clone() for parameter in model.parameters()], losses


def test_gradients_of_one_batch_of_eight_and_eight_of_one_agree():
    model, pairs = new_model(dropout=0.0), new_pairs(8)
    together, loss = gradients(model, [collate(pairs, PAD, BOS, EOS)])
    apart, same_loss = gradients(model, [collate([pair], PAD, BOS, EOS) for pair in pairs])
    assert torch.allclose(loss, same_loss, rtol=1e-5)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(together, apart, strict=True))


def test_every_target_token_weighs_the_same():
    model, pairs = new_model(dropout=0.0), new_pairs(8)
    batches = [collate(pairs[:1], PAD, BOS, EOS), collate(pairs[1:], PAD, BOS, EOS)]
    _, losses = gradients(model, batches)
    total = tokens = 0
    for batch in batches:
        logits = model(batch.source, batch.target_in)
        loss, n = smoothed_cross_entropy(logits, batch.target_out, PAD, 0.1)
        total, tokens = total + loss.item(), tokens + n.item()
    assert losses[0].item() == pytest.approx(total / tokens, rel=1e-5)


def test_bf16_autocast_stays_near_fp32_and_keeps_weights_in_fp32():
    model, batch = new_model(dropout=0.0), collate(new_pairs(8), PAD, BOS, EOS)
    exact, loss = gradients(model, [batch])
    rounded, near = gradients(model, [batch], precision="bf16")
    assert near[0].item() == pytest.approx(loss[0].item(), rel=0.01)
    assert not torch.equal(near, loss)
    assert all(grad.dtype == torch.float32 and grad.isfinite().all() for grad in rounded)
    dots = [(a.flatten() @ b.flatten()) / (a.norm() * b.norm()) for a, b in
            zip(exact, rounded, strict=True) if a.norm() > 1e-4]
    assert min(dots) > 0.95


def test_auto_precision_is_fp32_on_a_cpu():
    assert choose_precision("auto", torch.device("cpu")) == "fp32"
    assert choose_precision("bf16", torch.device("cpu")) == "bf16"


def test_batch_of_padding_alone_gives_a_zero_gradient():
    model = new_model()
    batch = collate(new_pairs(2), PAD, BOS, EOS)
    empty = batch._replace(target_out=torch.full_like(batch.target_out, PAD), target_tokens=0)
    grads, losses = gradients(model, [empty])
    assert losses.tolist() == [0, 0] and not any(grad.any() for grad in grads)


# Updates


def test_update_k_uses_the_rate_of_k_from_one_once_per_update_under_accumulation(tmp_path):
    seen = []
    step = torch.optim.Adam.step

    class Spy(torch.optim.Adam):
        def step(self):
            seen.append([group["lr"] for group in self.param_groups])
            step(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim, "Adam", Spy)
        quiet(new_model(), new_batches(), SETTINGS, tmp_path)
    assert seen == [[learning_rate(k, 16, 4, 0.2)] for k in range(1, 7)]
    assert [entry["lr"] for entry in read_log(tmp_path / "log.jsonl")] == [rate for [rate] in seen]


def test_training_learns_to_reverse(tmp_path):
    config = replace(SETTINGS, steps=60, accumulate=1, warmup_steps=20, scale=0.3)
    config = replace(config, label_smoothing=0.0)
    quiet(new_model(d_model=32, dropout=0.0), new_batches(), config, tmp_path)
    log = read_log(tmp_path / "log.jsonl")
    assert log[-1]["nll"] < 2.6 < log[0]["nll"]


def test_result_depends_on_the_seed_of_the_configuration_alone(tmp_path):
    runs = []
    for name, seed, disturb in (("a", 5, 0), ("b", 5, 1000), ("c", 6, 0)):
        torch.manual_seed(disturb)
        model = new_model()
        quiet(model, new_batches(), replace(SETTINGS, seed=seed), tmp_path / name)
        runs.append(model)
    assert same(runs[0], runs[1]) and not same(runs[0], runs[2])


# Resumption


@pytest.mark.parametrize("accumulate", [1, 2])
def test_six_updates_equal_three_and_three_to_the_bit(tmp_path, accumulate):
    config = replace(SETTINGS, accumulate=accumulate)
    straight = new_model()
    quiet(straight, new_batches(), config, tmp_path / "straight")
    quiet(new_model(), new_batches(), replace(config, steps=3), tmp_path / "parts")
    torch.rand(100)
    resumed = new_model(seed=77)
    summary = quiet(resumed, new_batches(), config, tmp_path / "parts")
    assert summary["step"] == 6 and same(straight, resumed)
    a, b = (read_log(tmp_path / name / "log.jsonl") for name in ("straight", "parts"))
    times = ("seconds", "tokens_per_second")
    strip = [[{k: v for k, v in e.items() if k not in times} for e in log] for log in (a, b)]
    assert strip[0] == strip[1]


def test_batches_without_a_start_argument_serve_a_run_that_is_not_resumed(tmp_path):
    class Plain:
        def epoch(self, number):
            return list(new_batches().epoch(number))

    a, b = new_model(), new_model()
    quiet(a, Plain(), SETTINGS, tmp_path / "a")
    quiet(b, new_batches(), SETTINGS, tmp_path / "b")
    assert same(a, b)


SCRIPT = """
import os, signal, sys
sys.path.insert(0, {tests!r})
import torch
torch.set_num_threads(1)
from test_training import *
model = new_model()
kill = Watched(9, lambda batch: os.kill(os.getpid(), signal.{name}))
train(model, kill, SETTINGS, {folder!r}, bar={bar})
print("returned")
"""


def run_script(folder, name, bar=False):
    here = str(Path(__file__).parent)
    script = SCRIPT.format(tests=here, folder=str(folder), name=name, bar=bar)
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.skipif(os.name != "posix", reason="kill -9 is of POSIX")
def test_killed_process_resumes_to_the_same_bits(tmp_path):
    straight = new_model()
    quiet(straight, new_batches(), SETTINGS, tmp_path / "straight")
    done = run_script(tmp_path / "killed", "SIGKILL")  # within update 5, after the save at 3
    assert done.returncode == -signal.SIGKILL and "returned" not in done.stdout
    log = tmp_path / "killed/log.jsonl"
    assert read_log(log)[-1]["step"] == 4
    with open(log, "a", encoding="utf-8") as file:
        file.write('{"step": 5, "lo')
    (tmp_path / "killed/checkpoints/.writing-x").mkdir()
    resumed = new_model(seed=8)
    quiet(resumed, new_batches(), SETTINGS, tmp_path / "killed")
    assert same(straight, resumed)
    assert [entry["step"] for entry in read_log(log)] == [1, 2, 3, 4, 5, 6]
    assert not list((tmp_path / "killed/checkpoints").glob(".writing*"))


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_signal_stops_after_the_update_with_a_checkpoint_and_says_where(tmp_path, name):
    done = run_script(tmp_path / "run", name, bar=True)
    assert done.returncode == 0 and "Traceback" not in done.stderr
    said = f"stopped by {name} after step 5; the run resumes from {tmp_path / 'run'}"
    assert said in done.stdout and "returned" in done.stdout
    assert "tokens/s" in done.stderr and "left" in done.stderr
    resumed, straight = new_model(seed=8), new_model()
    quiet(resumed, new_batches(), SETTINGS, tmp_path / "run")
    quiet(straight, new_batches(), SETTINGS, tmp_path / "straight")
    assert same(straight, resumed)


def test_second_interrupt_is_taken_at_once(tmp_path):
    def twice(batch):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        quiet(new_model(), Watched(3, twice), SETTINGS, tmp_path)


def test_signal_handlers_are_as_before_after_training(tmp_path):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    quiet(new_model(), new_batches(), SETTINGS, tmp_path)
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before


def test_finished_run_is_not_trained_again(tmp_path):
    quiet(new_model(), new_batches(), SETTINGS, tmp_path)
    before = (tmp_path / "log.jsonl").read_bytes()
    model = new_model(seed=3)
    summary = quiet(model, new_batches(), SETTINGS, tmp_path)
    assert summary["stopped"] == "finished" and summary["step"] == 6
    assert (tmp_path / "log.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        ({"d_ff": 64}, {}, "model d_ff was 32 there and is 64 now"),
        ({}, {"warmup_steps": 9}, "training warmup_steps was 4 there and is 9 now"),
        ({}, {"accumulate": 1}, "training accumulate was 2 there and is 1 now"),
    ],
)
def test_resuming_with_other_settings_names_the_field_and_both_values(
    tmp_path, model, settings, message
):
    quiet(new_model(), new_batches(), replace(SETTINGS, steps=2), tmp_path)
    before = (tmp_path / "config.json").read_bytes()
    with pytest.raises(ValueError, match=message):
        quiet(new_model(**model), new_batches(), replace(SETTINGS, **settings), tmp_path)
    assert (tmp_path / "config.json").read_bytes() == before


def test_length_and_intervals_may_change_on_resumption(tmp_path):
    quiet(new_model(), new_batches(), replace(SETTINGS, steps=2), tmp_path)
    later = replace(SETTINGS, steps=4, log_every=2, keep=1, checkpoint_every=1, minutes=60.0)
    assert quiet(new_model(), new_batches(), later, tmp_path)["step"] == 4
    assert json.loads((tmp_path / "config.json").read_text("utf-8"))["training"]["steps"] == 4


# The run's folder


def test_config_json_holds_both_settings_and_keeps_what_others_wrote(tmp_path):
    (tmp_path / "config.json").write_text('{"corpus": {"name": "mine"}}', encoding="utf-8")
    model = new_model()
    quiet(model, new_batches(), SETTINGS, tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text("utf-8"))
    assert stored["corpus"] == {"name": "mine"}
    assert TrainingConfig(**stored["training"]) == SETTINGS
    assert TransformerConfig(**stored["model"]) == model.config


def test_only_the_last_checkpoints_are_kept(tmp_path):
    quiet(new_model(), new_batches(), replace(SETTINGS, checkpoint_every=1, keep=2), tmp_path)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000005", "step-00000006"]


def test_log_counts_tokens_without_padding(tmp_path):
    batches = new_batches()
    quiet(new_model(), batches, SETTINGS, tmp_path)
    taken = [*batches.epoch(0), *batches.epoch(1)][:12]
    log = read_log(tmp_path / "log.jsonl")
    assert log[-1]["tokens"] == sum((batch.target_out != PAD).sum().item() for batch in taken)
    assert log[-1]["source_tokens"] == sum((batch.source != PAD).sum().item() for batch in taken)
    assert all(a["seconds"] < b["seconds"] for a, b in zip(log, log[1:], strict=False))


def test_logged_loss_is_the_mean_since_the_line_before(tmp_path):
    quiet(new_model(), new_batches(), SETTINGS, tmp_path / "each")
    quiet(new_model(), new_batches(), replace(SETTINGS, log_every=3), tmp_path / "third")
    each, third = (read_log(tmp_path / name / "log.jsonl") for name in ("each", "third"))
    for key in ("loss", "nll"):
        means = [sum(e[key] for e in each[i : i + 3]) / 3 for i in (0, 3)]
        assert [entry[key] for entry in third] == pytest.approx(means)


def test_log_tolerates_a_last_line_cut_short_and_names_any_other(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"st', encoding="utf-8")
    assert read_log(path) == [{"step": 1}, {"step": 2}]
    path.write_text('{"step": 1}\n{"st\n{"step": 3}\n', encoding="utf-8")
    with pytest.raises(ValueError, match="log.jsonl, line 2"):
        read_log(path)


def test_evaluation_sees_eval_mode_and_its_scores_join_the_log(tmp_path):
    modes = []

    def evaluate(model):
        modes.append(model.training)
        return {"dev_nll": 1.5}

    model = new_model()
    quiet(model, new_batches(), replace(SETTINGS, evaluate_every=4), tmp_path, evaluate=evaluate)
    scored = [e["step"] for e in read_log(tmp_path / "log.jsonl") if e.get("dev_nll") == 1.5]
    assert modes == [False, False] and scored == [4, 6] and model.training


def test_evaluation_does_not_change_the_run(tmp_path):
    a, b = new_model(), new_model()
    quiet(a, new_batches(), SETTINGS, tmp_path / "a")

    def evaluate(model):
        batch = next(iter(new_batches().epoch(0)))
        return {"dev": model(batch.source, batch.target_in).sum().item()}

    quiet(b, new_batches(), replace(SETTINGS, evaluate_every=1), tmp_path / "b", evaluate=evaluate)
    assert same(a, b)


def test_score_that_would_hide_a_field_of_the_log_is_refused(tmp_path):
    with pytest.raises(ValueError, match="tokens"):
        quiet(new_model(), new_batches(), SETTINGS, tmp_path, evaluate=lambda m: {"tokens": 1})


# When it goes wrong


def nan_target(model):
    def poison(batch):
        with torch.no_grad():
            model.generator.table.weight[5] = math.nan

    return poison


def test_loss_that_is_no_number_names_step_and_batch_and_keeps_the_checkpoint(tmp_path):
    model = new_model()
    watched = Watched(9, nan_target(model))
    message = r"loss is nan at step 5 \(epoch \d, up to its batch"
    with pytest.raises(FloatingPointError, match=message) as stop:
        quiet(model, watched, SETTINGS, tmp_path)
    assert "step-00000003" in str(stop.value)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000003"]
    resumed, straight = new_model(seed=2), new_model()
    quiet(resumed, new_batches(), SETTINGS, tmp_path)
    quiet(straight, new_batches(), SETTINGS, tmp_path / "straight")
    assert same(resumed, straight)


def test_gradient_that_is_no_number_never_reaches_a_checkpoint(tmp_path):
    model = new_model()
    count = []

    def poison(grad):
        count.append(1)
        return grad * math.nan if len(count) == 6 else grad  # in update 3, the loss still finite

    model.decoder.layers[0].feed_forward.inner.weight.register_hook(poison)
    with pytest.raises(FloatingPointError, match="not finite after step 3; there is no checkpoint"):
        quiet(model, new_batches(), SETTINGS, tmp_path)
    assert list_checkpoints(tmp_path) == []


def test_losses_read_late_as_on_a_gpu_still_name_the_first_bad_step(tmp_path):
    run = training.Run(new_model(), new_batches(), SETTINGS, tmp_path)
    run.unread = [(f"step {k}", torch.tensor([loss, 1.0])) for k, loss in
                  ((1, 2.0), (2, math.inf), (3, math.nan))]
    with pytest.raises(FloatingPointError, match="loss is inf at step 2"):
        training.read_losses(run)


def test_data_without_a_batch_is_an_error_and_not_an_endless_loop(tmp_path):
    class Empty:
        def epoch(self, number, start=0):
            return []

    with pytest.raises(ValueError, match="epoch 0 of the training data holds no batch"):
        quiet(new_model(), Empty(), SETTINGS, tmp_path)


def test_folder_that_cannot_be_written_is_reported_before_training(tmp_path):
    (tmp_path / "run").write_text("", encoding="utf-8")
    watched = Watched(1, lambda batch: pytest.fail("training began"))
    with pytest.raises(OSError, match="cannot write in the run's folder .*run"):
        quiet(new_model(), watched, SETTINGS, tmp_path / "run")


def test_full_disk_at_a_checkpoint_stops_clearly_and_the_run_can_be_resumed(tmp_path):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        saves = []
        real = training.save_checkpoint
        patch.setattr(training, "save_checkpoint",
                      lambda *a: full() if saves else (saves.append(1), real(*a))[1])
        with pytest.raises(OSError, match="No space left"):
            quiet(new_model(), new_batches(), SETTINGS, tmp_path)
    resumed, straight = new_model(seed=2), new_model()
    quiet(resumed, new_batches(), SETTINGS, tmp_path)
    quiet(straight, new_batches(), SETTINGS, tmp_path / "straight")
    assert same(resumed, straight)


# Time


def test_time_limit_stops_with_a_checkpoint_and_counts_over_resumptions(tmp_path):
    slow = Watched(3, lambda batch: time.sleep(0.6))
    limited = replace(SETTINGS, steps=1000, minutes=0.5 / 60)
    first = quiet(new_model(), slow, limited, tmp_path, evaluate=lambda model: {"dev": 1})
    assert first["stopped"] == "out of time" and first["step"] == 2 and first["seconds"] > 0.5
    assert read_log(tmp_path / "log.jsonl")[-1]["dev"] == 1
    again = quiet(new_model(), new_batches(), limited, tmp_path)
    assert again["stopped"] == "out of time" and again["step"] == 2
    more = quiet(new_model(), new_batches(), replace(limited, minutes=None, steps=4), tmp_path)
    assert more["step"] == 4 and more["seconds"] > first["seconds"]


# Settings


@pytest.mark.parametrize(
    ("field", "value"),
    [("steps", 0), ("keep", 0), ("accumulate", 0), ("warmup_steps", 0), ("log_every", 0),
     ("precision", "fp8"), ("label_smoothing", 1.0), ("minutes", 0.0)],
)
def test_setting_out_of_range_is_named_with_its_value(field, value):
    with pytest.raises(ValueError, match=rf"{field} .*{value}"):
        TrainingConfig(**{field: value})


def test_defaults_are_the_papers():
    settings = asdict(TrainingConfig())
    paper = {"steps": 100_000, "warmup_steps": 4000, "beta1": 0.9, "beta2": 0.98, "eps": 1e-9,
             "label_smoothing": 0.1, "max_tokens": 25_000, "keep": 5}
    assert settings.items() >= paper.items()
