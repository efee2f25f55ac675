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
    "read_json",
    "read_tensors",
    "remove_partial",
    "restore_random",
    "save_checkpoint",
    "save_model",
    "sync_folder",
    "tensor_bytes",
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
            shapes = f"{tuple(tensors[name].shape)}, here it is {tuple(tensor.shape)}"
            raise ValueError(f"{origin} is of another model: {name} has shape {shapes}")
        tensor.copy_(tensors[name])


def sync_folder(folder: Path) -> None:
    """Wait until the disk knows of a rename. Windows cannot open a folder, and is not asked."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_file(path: Path, data: bytes) -> None:
    """Write a file and wait until the disk has it."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file that is found as it was or as it should be, never in between."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".writing-{path.name}-{os.getpid()}")
    try:
        write_file(temporary, data)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file. ValueError names a file that is broken."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is broken: {error}") from error


def tensor_bytes(tensors: dict[str, Tensor]) -> bytes:
    """Return tensors of any device as the content of a safetensors file."""
    from safetensors.torch import save

    return save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})


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
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    number = {names[parameter]: i for i, parameter in enumerate(parameters)}
    state: dict[int, dict[str, Tensor]] = {}
    for path, tensor in tensors.items():
        key, name = path.split("/")
        state.setdefault(number[name], {})[key] = tensor
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def random_tensors() -> dict[str, Tensor]:
    """Return the states of torch's random streams, from which dropout draws."""
    streams = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        streams["cuda"] = torch.cuda.get_rng_state()
    return streams


def restore_random(streams: dict[str, Tensor]) -> None:
    """Continue the streams where they were saved."""
    torch.set_rng_state(streams["cpu"])
    if "cuda" in streams and torch.cuda.is_available():
        torch.cuda.set_rng_state(streams["cuda"])


FILES = ("model.safetensors", "optimizer.safetensors", "random.safetensors", "state.json")


def list_checkpoints(folder: Path | str) -> list[Path]:
    """Return the complete checkpoints in a run's folder, the oldest first."""
    found = Path(folder, "checkpoints").glob("step-*")
    named = [path for path in found if re.fullmatch(r"step-\d{8,}", path.name)]
    whole = [path for path in named if all((path / name).is_file() for name in FILES)]
    return sorted(whole, key=lambda path: int(path.name[5:]))


def last_checkpoints(folder: Path | str, count: int) -> list[Path]:
    """Return the last `count` checkpoints of a run. ValueError when it holds fewer."""
    paths = list_checkpoints(folder)
    if not 1 <= count <= len(paths):
        raise ValueError(f"{count} checkpoints asked for, {folder} holds {len(paths)}")
    return paths[-count:]


def remove_partial(folder: Path | str) -> None:
    """Delete what a killed run left half written, and nothing that a user put there."""
    for path in Path(folder, "checkpoints").glob(".writing-*"):
        shutil.rmtree(path)


def save_checkpoint(
    folder: Path | str,
    step: int,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: dict,
) -> Path:
    """Write checkpoints/step-XXXXXXXX in a run's folder, and return its path.

    `state` is anything JSON can hold. The checkpoint appears whole, by one rename, or not at
    all: OSError then names the folder and the reason, and older checkpoints stay.
    """
    home = Path(folder, "checkpoints")
    contents = [distinct_tensors(model), optimizer_tensors(model, optimizer), random_tensors()]
    data = [tensor_bytes(tensors) for tensors in contents]
    data.append(json.dumps({"step": step, **state}, indent=1).encode("utf-8"))
    temporary = None
    try:
        home.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".writing-", dir=home))
        for name, content in zip(FILES, data, strict=True):
            write_file(temporary / name, content)
        sync_folder(temporary)
        final = home / f"step-{step:08d}"
        shutil.rmtree(final, ignore_errors=True)
        os.replace(temporary, final)
        sync_folder(home)
    except OSError as error:
        raise OSError(f"checkpoint of step {step} not written in {home}: {error}") from error
    finally:
        if temporary:
            shutil.rmtree(temporary, ignore_errors=True)
    return final


def read_json(path: Path) -> dict:
    """Return a JSON object from a file. ValueError names the file that holds none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds no JSON object")
    return value


def load_checkpoint(
    path: Path | str, model: nn.Module, optimizer: torch.optim.Optimizer | None = None
) -> dict:
    """Fill the model from a checkpoint and return its state.

    With an optimizer its moments and torch's random streams are restored too, so that training
    goes on as if it had never stopped. ValueError when the tensors are another model's.
    """
    path = Path(path)
    fill_model(model, read_tensors(path / FILES[0]), str(path))
    if optimizer is not None:
        fill_optimizer(model, optimizer, read_tensors(path / FILES[1]))
        restore_random(read_tensors(path / FILES[2]))
    return read_json(path / FILES[3])


def average_checkpoints(paths: list[Path]) -> dict[str, Tensor]:
    """Return the mean of each tensor over checkpoints, summed in float64 (section 6.1).

    ValueError for no checkpoint, or for checkpoints of different models.
    """
    if not paths:
        raise ValueError("there is no checkpoint to average")
    first = read_tensors(Path(paths[0]) / FILES[0])
    sums = {name: tensor.double() for name, tensor in first.items()}
    for path in paths[1:]:
        tensors = read_tensors(Path(path) / FILES[0])
        same = tensors.keys() == sums.keys()
        if not same or any(tensors[name].shape != sums[name].shape for name in sums):
            raise ValueError(f"{path} and {paths[0]} are of different models")
        for name, tensor in tensors.items():
            sums[name] += tensor
    return {name: (sums[name] / len(paths)).to(first[name].dtype) for name in sums}


def save_model(path: Path | str, model: nn.Module | dict[str, Tensor]) -> None:
    """Write a model's tensors to one safetensors file, atomically, each tensor once."""
    tensors = model if isinstance(model, dict) else distinct_tensors(model)
    write_atomically(Path(path), tensor_bytes(tensors))


def load_model(run_folder: Path | str) -> Transformer:
    """Return the model of a run, in eval mode: averaged.safetensors, or the last checkpoint.

    FileNotFoundError when the folder holds neither.
    """
    folder = Path(run_folder)
    path = folder / "averaged.safetensors"
    if not path.is_file():
        checkpoints = list_checkpoints(folder)
        if not checkpoints:
            raise FileNotFoundError(f"{folder} holds no averaged.safetensors and no checkpoint")
        path = checkpoints[-1] / FILES[0]
    settings = read_json(folder / "config.json")
    try:
        model = Transformer(TransformerConfig(**settings["model"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"{folder / 'config.json'} describes no model: {error!r}") from error
    fill_model(model, read_tensors(path), str(path))
    return model.eval()
