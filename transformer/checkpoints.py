# Written from chapters/5-5-training.ipynb by chapters/_book/export.py. Edit the chapter.
"""Checkpoints: written whole or not at all, read without pickle, averaged (paper section 6.1)."""

__all__ = [
    "FILES",
    "average_checkpoints",
    "distinct_tensors",
    "fill_model",
    "fill_optimizer",
    "last_checkpoints",
    "list_checkpoints",
    "load_checkpoint",
    "load_model",
    "optimizer_tensors",
    "random_tensors",
    "remove_partial",
    "restore_random",
    "save_checkpoint",
    "save_model",
    "sync_folder",
    "write_atomically",
    "write_file",
]

import json
import os
import re
import shutil
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

from transformer.model import Transformer, TransformerConfig


def distinct_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the model's parameters and buffers by name, a shared one once."""
    names: dict[int, str] = {}
    everything = model.state_dict(keep_vars=True)
    for name, tensor in everything.items():
        names.setdefault(id(tensor), name)
    return {name: everything[name].detach() for name in names.values()}


def fill_model(model: nn.Module, tensors: dict[str, Tensor], origin: str) -> None:
    """Copy named tensors into the model. ValueError names those missing, extra or misshapen."""
    own = distinct_tensors(model)
    missing, extra = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
    if missing or extra:
        raise ValueError(f"{origin} is of another model: lacks {missing[:3]}, adds {extra[:3]}")
    for name, tensor in own.items():
        if tensor.shape != tensors[name].shape:
            shapes = f"{tuple(tensors[name].shape)}, the model {tuple(tensor.shape)}"
            raise ValueError(f"{origin} is of another model: {name} has shape {shapes}")
        tensor.copy_(tensors[name])


def sync_folder(folder: Path) -> None:
    """Ask the disk to remember a rename; Windows cannot open a folder and needs no asking."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_file(path: Path, data: bytes) -> None:
    """Write and wait until the disk has it."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that it is found either as it was or as it should be, never in between."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".writing-{path.name}-{os.getpid()}")
    try:
        write_file(temporary, data)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimizer's state as {"key/parameter name": tensor}."""
    return {
        f"{key}/{name}": torch.as_tensor(value)
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def fill_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]
) -> None:
    """Put the state back, each tensor to its parameter by name."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    state: dict[int, dict[str, Tensor]] = {}
    order = [names[p] for group in optimizer.param_groups for p in group["params"]]
    for path, tensor in tensors.items():
        key, name = path.split("/")
        state.setdefault(order.index(name), {})[key] = tensor
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def random_tensors() -> dict[str, Tensor]:
    """Return the states of torch's random streams, from which dropout draws."""
    streams = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        streams["cuda"] = torch.cuda.get_rng_state()
    return streams


def restore_random(tensors: dict[str, Tensor]) -> None:
    """Continue the streams where they were saved."""
    torch.set_rng_state(tensors["cpu"])
    if "cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["cuda"])


FILES = ("model.safetensors", "optimizer.safetensors", "random.safetensors", "state.json")


def list_checkpoints(folder: Path | str) -> list[Path]:
    """Return the run's complete checkpoints, the oldest first."""
    found = Path(folder, "checkpoints").glob("step-*")
    named = [path for path in found if re.fullmatch(r"step-\d{8,}", path.name)]
    whole = [path for path in named if all((path / name).is_file() for name in FILES)]
    return sorted(whole, key=lambda path: int(path.name[5:]))


def last_checkpoints(folder: Path | str, count: int) -> list[Path]:
    """Return the last `count` checkpoints. ValueError when the run holds fewer."""
    paths = list_checkpoints(folder)
    if count < 1 or count > len(paths):
        raise ValueError(f"{folder} holds {len(paths)} checkpoints, {count} asked for")
    return paths[-count:]


def remove_partial(folder: Path | str) -> None:
    """Delete what a killed run left half written."""
    whole = list_checkpoints(folder)
    for path in Path(folder, "checkpoints").glob("*"):
        if path.is_dir() and path not in whole:
            shutil.rmtree(path)


def save_checkpoint(
    folder: Path | str,
    step: int,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: dict,
) -> Path:
    """Write checkpoints/step-XXXXXXXX in the run's folder, and return its path.

    `state` is anything JSON holds. The checkpoint appears whole, by one rename, or not at all:
    OSError then names the folder and the reason, and older checkpoints stay.
    """
    from safetensors.torch import save

    home = Path(folder, "checkpoints")
    final = home / f"step-{step:08d}"
    tensors = (distinct_tensors(model), optimizer_tensors(model, optimizer), random_tensors())
    try:
        home.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".writing-", dir=home))
        try:
            for name, group in zip(FILES[:3], tensors, strict=True):
                group = {key: value.contiguous().cpu() for key, value in group.items()}
                write_file(temporary / name, save(group))
            text = json.dumps({"step": step, **state}, indent=1)
            write_file(temporary / FILES[3], text.encode("utf-8"))
            sync_folder(temporary)
            shutil.rmtree(final, ignore_errors=True)
            os.replace(temporary, final)
            sync_folder(home)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise OSError(f"checkpoint of step {step} not written in {home}: {error}") from error
    return final


def load_checkpoint(
    path: Path | str, model: nn.Module, optimizer: torch.optim.Optimizer | None = None
) -> dict:
    """Fill the model from a checkpoint and return its state.

    With an optimizer its moments and torch's random streams are restored too, so that training
    goes on as if it had never stopped. ValueError when the tensors are another model's.
    """
    from safetensors.torch import load_file

    path = Path(path)
    fill_model(model, load_file(path / FILES[0]), str(path))
    if optimizer is not None:
        fill_optimizer(model, optimizer, load_file(path / FILES[1]))
        restore_random(load_file(path / FILES[2]))
    return json.loads((path / FILES[3]).read_text(encoding="utf-8"))


def average_checkpoints(paths: list[Path]) -> dict[str, Tensor]:
    """Return the mean of each tensor over checkpoints, summed in float64 (section 6.1).

    ValueError for no checkpoint, or for checkpoints of different models.
    """
    from safetensors.torch import load_file

    if not paths:
        raise ValueError("no checkpoint to average")
    first = load_file(Path(paths[0]) / FILES[0])
    sums = {name: tensor.double() for name, tensor in first.items()}
    for path in paths[1:]:
        tensors = load_file(Path(path) / FILES[0])
        same = tensors.keys() == sums.keys()
        if not same or any(tensors[n].shape != sums[n].shape for n in sums):
            raise ValueError(f"{path} and {paths[0]} are of different models")
        for name, tensor in tensors.items():
            sums[name] += tensor
    return {name: (sums[name] / len(paths)).to(first[name].dtype) for name in sums}


def save_model(path: Path | str, model: nn.Module | dict[str, Tensor]) -> None:
    """Write a model's tensors to one safetensors file, atomically, each tensor once."""
    from safetensors.torch import save

    tensors = model if isinstance(model, dict) else distinct_tensors(model)
    write_atomically(Path(path), save({n: t.contiguous().cpu() for n, t in tensors.items()}))


def load_model(run_folder: Path | str) -> Transformer:
    """Return the model of a run, in eval mode: averaged.safetensors, or the last checkpoint.

    FileNotFoundError when the folder holds neither.
    """
    from safetensors.torch import load_file

    folder = Path(run_folder)
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    path = folder / "averaged.safetensors"
    if not path.is_file():
        checkpoints = list_checkpoints(folder)
        if not checkpoints:
            raise FileNotFoundError(f"{folder} holds no averaged.safetensors and no checkpoint")
        path = checkpoints[-1] / FILES[0]
    model = Transformer(TransformerConfig(**settings["model"]))
    fill_model(model, load_file(path), str(path))
    return model.eval()
