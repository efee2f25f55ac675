# Written from chapters/5-5-training.ipynb by chapters/_book/export.py. Edit the chapter.
"""The training loop: updates, log, checkpoints, a clean stop (paper section 5)."""

__all__ = [
    "FREE",
    "PRECISIONS",
    "Progress",
    "Run",
    "TrainingConfig",
    "accumulate_gradients",
    "after_update",
    "check_same",
    "checkpoint",
    "choose_precision",
    "describe",
    "make_optimizer",
    "open_run",
    "read_log",
    "read_losses",
    "reason_to_stop",
    "rewind_log",
    "stop_signals",
    "stream",
    "train",
    "update",
    "write_log",
]

import json
import math
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, asdict, dataclass, fields, replace
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor, nn

from transformer.checkpoints import (
    list_checkpoints,
    load_checkpoint,
    read_json,
    remove_partial,
    save_checkpoint,
    write_atomically,
)
from transformer.loss import smoothed_and_plain
from transformer.model import check_types
from transformer.schedule import learning_rate


def accumulate_gradients(
    model: nn.Module, batches: list, label_smoothing: float, precision: str = "fp32"
) -> Tensor:
    """Add to the gradients those of the mean loss per target token over all these batches.

    Every target token weighs the same, however the batches cut them. Returns two means per
    token, on the model's device: the smoothed loss, which was minimised, and the plain one.
    """
    device = next(model.parameters()).device
    tokens = max(sum(int(batch.target_tokens) for batch in batches), 1)
    means = torch.zeros(2, device=device)
    for batch in batches:
        batch = batch.to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            logits = model(batch.source, batch.target_in)
        loss, plain, _ = smoothed_and_plain(
            logits, batch.target_out, model.config.pad_id, label_smoothing
        )
        (loss / tokens).backward()
        means += torch.stack([loss.detach(), plain]) / tokens
    return means


PRECISIONS = ("auto", "fp32", "bf16")
# These may differ when a run is resumed.
FREE = ("steps", "checkpoint_every", "keep", "log_every", "evaluate_every", "minutes")


@dataclass(frozen=True)
class TrainingConfig:
    """What decides a run beside the model and the data. But for the batch, the defaults are base's.

    An update takes `accumulate` batches of at most `max_tokens` positions a side, paddings
    included; the run for the paper had 8 x 4,096 of them for its 25,000 tokens. `minutes` bounds
    the time of training, summed over resumptions. ValueError names the field out of range.
    """

    warmup_steps: int = 4000
    scale: float = 1.0
    label_smoothing: float = 0.1
    max_tokens: int = 25000
    accumulate: int = 1
    beta1: float = 0.9
    beta2: float = 0.98
    eps: float = 1e-9
    seed: int = 1
    precision: str = "auto"
    steps: int = 100_000
    checkpoint_every: int = 1000
    keep: int = 5
    log_every: int = 50
    evaluate_every: int = 1000
    minutes: float | None = None

    def __post_init__(self):
        check_types(self)
        counts = ("warmup_steps", "max_tokens", "accumulate", "steps", "keep")
        for name in (*counts, "checkpoint_every", "log_every", "evaluate_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision is one of {PRECISIONS}, not {self.precision!r}")
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing must be in [0, 1), not {self.label_smoothing}")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be in [0, 1), not {getattr(self, name)}")
        for name in ("scale", "eps", "minutes"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} must be positive, not {value}")


def choose_precision(precision: str, device: torch.device) -> str:
    """Return "fp32" or "bf16"; "auto" is bf16 on a CUDA device that has it, else fp32."""
    if precision != "auto":
        return precision
    cuda = device.type == "cuda" and torch.cuda.is_bf16_supported()
    return "bf16" if cuda else "fp32"


def make_optimizer(model: nn.Module, config: TrainingConfig) -> torch.optim.Adam:
    """Adam as the paper sets it (section 5.3), in one fused kernel; the schedule sets the rate."""
    betas = (config.beta1, config.beta2)
    fused = next(model.parameters()).device.type in ("cpu", "cuda")
    return torch.optim.Adam(model.parameters(), lr=0.0, betas=betas, eps=config.eps, fused=fused)


@dataclass
class Progress:
    """How far a run has come: what a checkpoint needs beside tensors."""

    step: int = 0
    epoch: int = 0
    batch: int = 0  # batches already taken from this epoch
    source_tokens: int = 0
    tokens: int = 0  # target tokens, padding not counted
    seconds: float = 0.0


def stream(batches, progress: Progress) -> Iterator:
    """Yield batches from where `progress` stands, epoch after epoch, and move it on."""
    while True:
        start = progress.batch
        rest = batches.epoch(progress.epoch, start) if start else batches.epoch(progress.epoch)
        empty = not start
        for batch in rest:
            empty = False
            progress.batch += 1
            yield batch
        if empty:
            raise ValueError(f"epoch {progress.epoch} of the training data holds no batch")
        progress.epoch, progress.batch = progress.epoch + 1, 0


def read_log(path: Path | str) -> list[dict]:
    """Return the lines of a log. A last line that a kill cut short is left out.

    ValueError names the file and the line when another one is broken.
    """
    lines = Path(path).read_text(encoding="utf-8").split("\n")
    entries = []
    for number, line in enumerate(lines, 1):
        try:
            if line:
                entries.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number < len(lines):
                raise ValueError(f"{path}, line {number} is not JSON: {error}") from error
    return entries


def rewind_log(path: Path, step: int) -> None:
    """Drop what a killed run logged after the checkpoint it resumes from."""
    kept = [entry for entry in read_log(path) if entry["step"] <= step] if path.exists() else []
    write_atomically(path, "".join(json.dumps(entry) + "\n" for entry in kept).encode("utf-8"))


def check_same(stored: dict, settings: object, kind: str, folder: Path) -> None:
    """ValueError names the first field in which a run's stored settings differ from these."""
    for field in fields(settings):
        default = None if field.default is MISSING else field.default
        old, new = stored.get(field.name, default), getattr(settings, field.name)
        if field.name not in FREE and old != new:
            here = f"{kind} {field.name} was {old!r} there and is {new!r} now"
            raise ValueError(f"cannot resume {folder}: {here}; take another folder")


def open_run(folder: Path, model: nn.Module, config: TrainingConfig) -> Path | None:
    """Prepare the folder, write config.json, and return the checkpoint to resume from, if any."""
    path = folder / "config.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_partial(folder)
        found = list_checkpoints(folder)
        stored = read_json(path) if path.exists() else {}
        if found:  # what a checkpoint was trained with stands in the checkpoint
            began = read_json(found[-1] / "state.json")
            check_same(began.get("model", {}), model.config, "model", folder)
            check_same(began.get("training", {}), config, "training", folder)
        stored |= {"model": asdict(model.config), "training": asdict(config)}
        write_atomically(path, json.dumps(stored, indent=1).encode("utf-8"))
        rewind_log(folder / "log.jsonl", int(found[-1].name[5:]) if found else 0)
    except OSError as error:
        raise OSError(f"cannot write in the run's folder {folder}: {error}") from error
    return found[-1] if found else None


class Run:
    """One training run from its start, or its resumption, to its stop; `train` drives it."""

    def __init__(self, model: nn.Module, batches, config: TrainingConfig, folder: Path):
        self.model, self.config, self.folder = model, config, folder
        self.device = next(model.parameters()).device
        self.precision = choose_precision(config.precision, self.device)
        self.optimizer = make_optimizer(model, config)
        self.progress = Progress()
        torch.manual_seed(config.seed)
        found = open_run(folder, model, config)
        if found:
            state = load_checkpoint(found, model, self.optimizer)
            self.progress = Progress(**{f.name: state[f.name] for f in fields(Progress)})
        self.batches = stream(batches, self.progress)
        self.began = time.perf_counter() - self.progress.seconds
        self.unread: list[tuple[str, Tensor]] = []  # where, and losses still on the device
        self.losses: list[list[float]] = []  # smoothed and plain, since the last log line
        self.opened = self.logged = replace(self.progress)

    def tick(self) -> None:
        self.progress.seconds = time.perf_counter() - self.began

    def last_good(self) -> str:
        found = list_checkpoints(self.folder)
        return f"last good checkpoint: {found[-1]}" if found else "there is no checkpoint yet"


def read_losses(run: Run) -> None:
    """Fetch the losses computed so far. FloatingPointError names the first that is no number."""
    if run.unread:
        values = torch.stack([losses for _, losses in run.unread]).tolist()
        for (where, _), (loss, _) in zip(run.unread, values, strict=True):
            if not math.isfinite(loss):
                raise FloatingPointError(f"the loss is {loss} at {where}; {run.last_good()}")
        run.losses += values
        run.unread = []


def update(run: Run) -> None:
    """Change the weights once. Update k uses lr(k), k from 1 (section 5.3)."""
    progress, config, model = run.progress, run.config, run.model
    batches = [next(run.batches) for _ in range(config.accumulate)]
    progress.step += 1
    rate = learning_rate(progress.step, model.config.d_model, config.warmup_steps, config.scale)
    for group in run.optimizer.param_groups:
        group["lr"] = rate
    run.optimizer.zero_grad()
    losses = accumulate_gradients(model, batches, config.label_smoothing, run.precision)
    where = f"step {progress.step} (epoch {progress.epoch}, up to its batch {progress.batch})"
    run.unread.append((where, losses))
    if run.device.type == "cpu":  # elsewhere reading a number waits for the device
        read_losses(run)
    run.optimizer.step()
    pad_id = model.config.pad_id
    progress.source_tokens += sum(int((batch.source != pad_id).sum()) for batch in batches)
    progress.tokens += sum(int(batch.target_tokens) for batch in batches)
    run.tick()


def checkpoint(run: Run) -> Path:
    """Save the run, unless its weights are no numbers any more, and keep the last few."""
    read_losses(run)
    for name, parameter in run.model.named_parameters():
        if not parameter.isfinite().all():
            step = run.progress.step
            raise FloatingPointError(f"{name} is not finite after step {step}; {run.last_good()}")
    run.tick()
    settings = {"model": asdict(run.model.config), "training": asdict(run.config)}
    state = asdict(run.progress) | settings
    path = save_checkpoint(run.folder, run.progress.step, run.model, run.optimizer, state)
    for old in list_checkpoints(run.folder)[: -run.config.keep]:
        shutil.rmtree(old)
    return path


def write_log(run: Run, scores: dict) -> None:
    """Append a line: the progress, mean losses and speed since the line before, and scores."""
    read_losses(run)
    now, before = run.progress, run.logged
    seconds = max(now.seconds - before.seconds, 1e-9)
    entry = asdict(now) | {
        "lr": run.optimizer.param_groups[0]["lr"],
        "loss": fmean(loss for loss, _ in run.losses),
        "nll": fmean(plain for _, plain in run.losses),
        "tokens_per_second": (now.tokens - before.tokens) / seconds,
    }
    clash = sorted(entry.keys() & scores.keys())
    if clash:
        raise ValueError(f"scores of an evaluation may not be called {clash}: the log has these")
    path = run.folder / "log.jsonl"
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(entry | scores) + "\n")
    except OSError as error:
        raise OSError(f"{path} cannot be written: {error}; {run.last_good()}") from error
    run.tick()
    run.losses, run.logged = [], replace(run.progress)


def describe(run: Run) -> str:
    """Loss, speed and time left, for the bar."""
    now, first, config = run.progress, run.opened, run.config
    seconds = max(now.seconds - first.seconds, 1e-9)
    left = (config.steps - now.step) * seconds / max(now.step - first.step, 1)
    if config.minutes is not None:
        left = max(min(left, 60 * config.minutes - now.seconds), 0.0)
    loss = f"loss {fmean(loss for loss, _ in run.losses):.3f}, " if run.losses else ""
    speed = (now.tokens - first.tokens) / seconds
    minutes, rest = divmod(round(left), 60)
    return f" {loss}{speed:,.0f} tokens/s, {minutes}:{rest:02d} left"


@contextmanager
def stop_signals() -> Iterator[list[str]]:
    """Note Ctrl-C and SIGTERM instead of dying of them; a second one acts as it always did."""
    received: list[str] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) or signal.SIG_DFL for number in numbers}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, frame) -> None:
        received.append(signal.Signals(number).name)
        restore()

    for number in numbers:
        signal.signal(number, note)
    try:
        yield received
    finally:
        restore()


def reason_to_stop(run: Run, signals: list[str]) -> str | None:
    now, config = run.progress, run.config
    if now.step >= config.steps:
        return "finished"
    if config.minutes is not None and now.seconds >= 60 * config.minutes:
        return "out of time"
    return f"stopped by {signals[0]}" if signals else None


def after_update(run: Run, evaluate: Callable | None, reason: str | None) -> None:
    """Evaluate, log and save when this step, or the end of the run, asks for it."""
    step, config = run.progress.step, run.config
    ended = reason in ("finished", "out of time")
    scores = {}
    if evaluate and (step % config.evaluate_every == 0 or ended):
        run.model.eval()
        scores = evaluate(run.model)
        run.model.train()
    if scores or step % config.log_every == 0 or reason:
        write_log(run, scores)
    if step % config.checkpoint_every == 0 or reason:
        checkpoint(run)


def train(
    model: nn.Module,
    batches,
    config: TrainingConfig,
    folder: Path | str,
    evaluate: Callable[[nn.Module], dict] | None = None,
    bar: bool = True,
) -> dict:
    """Train a model in a run's folder until it is done, out of time or told to stop (section 5).

    `batches.epoch(n)` yields the batches of epoch n, always the same; `batches.epoch(n, start)`
    those from number `start` on. A folder that holds a checkpoint is resumed: on a CPU the
    run ends in the bits it would have had. Ctrl-C or SIGTERM stops after the update at hand,
    with a checkpoint. `evaluate(model)` returns scores for the log. Seeds torch with
    `config.seed`. Returns the progress, why it stopped, and the last checkpoint. ValueError
    when the folder holds another run, FloatingPointError when the loss is no number any
    more, OSError when the folder cannot be written.
    """
    from tqdm import tqdm

    run = Run(model, batches, config, Path(folder))
    shape = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} steps [{elapsed}{postfix}]"
    done = run.progress.step
    meter = tqdm(total=config.steps, initial=done, disable=not bar, bar_format=shape)
    model.train()
    with meter, stop_signals() as signals:
        reason = reason_to_stop(run, signals)
        while not reason:
            update(run)
            reason = reason_to_stop(run, signals)
            meter.set_postfix_str(describe(run), refresh=False)
            meter.update()
            after_update(run, evaluate, reason)
    saved = [str(path) for path in list_checkpoints(run.folder)[-1:]]
    if reason != "finished":
        what = f"the run resumes from {saved[0]}" if saved else "nothing was saved yet"
        print(f"{reason} after step {run.progress.step}; {what}")
    return asdict(run.progress) | {"stopped": reason, "checkpoint": saved[0] if saved else None}
