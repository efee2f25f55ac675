"""Checkpoints: whole or not at all, tensors once, safe to read, averaged exactly."""

import errno
import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from transformer import checkpoints
from transformer.checkpoints import (
    FILES,
    average_checkpoints,
    distinct_tensors,
    fill_model,
    last_checkpoints,
    list_checkpoints,
    load_checkpoint,
    load_model,
    read_tensors,
    remove_partial,
    save_checkpoint,
    save_model,
    write_atomically,
)
from transformer.model import Transformer, TransformerConfig, count_parameters

TIED = "source_embeddings.table.weight"


def new_model(seed=0, **changes):
    small = {"vocab_size": 20, "layers": 1, "d_model": 8, "d_ff": 16, "heads": 2}
    return Transformer(TransformerConfig(**(small | changes)), torch.Generator().manual_seed(seed))


def new_adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.01, betas=(0.9, 0.98), fused=True)


def one_update(model, optimizer):
    tokens = torch.arange(3, 15).view(2, 6)
    optimizer.zero_grad()
    model(tokens, tokens).square().mean().backward()
    optimizer.step()


def saved(folder, step=1, seed=0, **changes):
    model = new_model(seed, **changes)
    optimizer = new_adam(model)
    one_update(model, optimizer)
    return save_checkpoint(folder, step, model, optimizer, {"tokens": 5}), model, optimizer


def test_checkpoint_holds_tensors_and_json_alone(tmp_path):
    path, _, _ = saved(tmp_path, step=100)
    assert path == tmp_path / "checkpoints/step-00000100"
    assert sorted(p.name for p in path.iterdir()) == sorted(FILES)
    assert all(name.endswith((".safetensors", ".json")) for name in FILES)
    assert json.loads((path / "state.json").read_text("utf-8")) == {"step": 100, "tokens": 5}


def test_tied_matrix_is_saved_once_and_tied_after_loading(tmp_path):
    path, model, _ = saved(tmp_path)
    tensors = load_file(path / "model.safetensors")
    assert sum(tensor.numel() for tensor in tensors.values()) == count_parameters(model)
    assert [name for name in tensors if "embeddings" in name or "generator" in name] == [TIED]
    other = new_model(seed=1)
    load_checkpoint(path, other)
    pointers = {
        part.table.weight.data_ptr()
        for part in (other.source_embeddings, other.target_embeddings, other.generator)
    }
    assert len(pointers) == 1 and torch.equal(other.generator.table.weight, tensors[TIED])


def test_untied_matrices_are_saved_apart(tmp_path):
    path, model, _ = saved(tmp_path, tied=False)
    names = [n for n in load_file(path / "model.safetensors") if n.endswith("table.weight")]
    assert len(names) == 3
    assert len(distinct_tensors(model)) == len(model.state_dict())


def test_restored_optimizer_and_random_stream_make_the_same_next_update(tmp_path):
    path, first, adam = saved(tmp_path, dropout=0.3)
    one_update(first, adam)
    second = new_model(seed=1, dropout=0.3)
    other = new_adam(second)
    torch.rand(5)
    load_checkpoint(path, second, other)
    one_update(second, other)
    assert all(map(torch.equal, first.parameters(), second.parameters()))


def test_loading_without_an_optimizer_leaves_the_random_stream_alone(tmp_path):
    path, _, _ = saved(tmp_path)
    model = new_model()
    torch.manual_seed(3)
    before = torch.get_rng_state()
    load_checkpoint(path, model)
    assert torch.equal(torch.get_rng_state(), before)


def test_optimizer_state_is_stored_under_parameter_names(tmp_path):
    path, _, _ = saved(tmp_path)
    names = load_file(path / "optimizer.safetensors").keys()
    assert {f"exp_avg/{TIED}", f"exp_avg_sq/{TIED}", f"step/{TIED}"} <= names


def test_checkpoint_of_another_model_is_refused_by_name(tmp_path):
    path, _, _ = saved(tmp_path)
    with pytest.raises(ValueError, match=r"source_embeddings.table.weight has shape \(20, 8\)"):
        load_checkpoint(path, new_model(vocab_size=21))
    with pytest.raises(ValueError, match="lacks .*decoder.layers.1"):
        load_checkpoint(path, new_model(layers=2))
    with pytest.raises(ValueError, match="adds .*bias"):
        load_checkpoint(path, new_model(attention_bias=False))


def test_refused_checkpoint_changes_no_weight(tmp_path):
    path, _, _ = saved(tmp_path)
    model = new_model(seed=4, layers=2)
    before = [parameter.clone() for parameter in model.parameters()]
    with pytest.raises(ValueError):
        load_checkpoint(path, model)
    assert all(map(torch.equal, before, model.parameters()))


def test_broken_file_is_named(tmp_path):
    path, _, _ = saved(tmp_path)
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ValueError, match="model.safetensors is broken"):
        load_checkpoint(path, new_model())


def test_list_is_sorted_by_step_and_ignores_what_is_not_whole(tmp_path):
    for step in (9, 100_000_000, 10):
        saved(tmp_path, step=step)
    home = tmp_path / "checkpoints"
    (home / ".writing-abc").mkdir()
    (home / "step-00000011").mkdir()
    (home / "step-00000011/model.safetensors").write_bytes(b"half")
    (home / "step-12-copy").mkdir()
    (home / "notes.txt").write_text("mine", encoding="utf-8")
    assert [int(path.name[5:]) for path in list_checkpoints(tmp_path)] == [9, 10, 100_000_000]
    remove_partial(tmp_path)
    left = sorted(path.name for path in home.iterdir())
    mine = ["notes.txt", "step-00000011", "step-12-copy"]
    assert left == sorted([*mine, "step-00000009", "step-00000010", "step-100000000"])


def test_list_of_a_folder_without_checkpoints_is_empty(tmp_path):
    assert list_checkpoints(tmp_path / "nowhere") == []


@pytest.mark.parametrize("failing", range(4))
def test_full_disk_leaves_older_checkpoints_and_nothing_half_written(
    tmp_path, monkeypatch, failing
):
    good, model, optimizer = saved(tmp_path)
    real, calls = checkpoints.write_file, []

    def full(path, data):
        calls.append(path)
        if len(calls) > failing:
            path.write_bytes(data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        real(path, data)

    monkeypatch.setattr(checkpoints, "write_file", full)
    with pytest.raises(OSError, match="step 2 not written in .*No space left on device"):
        save_checkpoint(tmp_path, 2, model, optimizer, {})
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [good.name]


def test_real_limit_on_file_size_is_reported(tmp_path):
    resource = pytest.importorskip("resource")
    _, model, optimizer = saved(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="step 2 not written"):
            save_checkpoint(tmp_path, 2, model, optimizer, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(list((tmp_path / "checkpoints").iterdir())) == 1


def test_folder_that_is_a_file_is_reported(tmp_path):
    (tmp_path / "run").write_text("", encoding="utf-8")
    model = new_model()
    with pytest.raises(OSError, match="step 3 not written in .*run"):
        save_checkpoint(tmp_path / "run", 3, model, new_adam(model), {})


def test_every_file_and_folder_is_synced_before_the_rename(tmp_path, monkeypatch):
    events = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (events.append("fsync"), fsync(handle)))
    monkeypatch.setattr(os, "replace", lambda a, b: (events.append("rename"), replace(a, b)))
    saved(tmp_path)
    folder = "fsync" if os.name == "posix" else None
    assert events == [e for e in ["fsync"] * 4 + [folder, "rename", folder] if e]


def test_saving_a_step_again_replaces_it(tmp_path):
    saved(tmp_path, seed=0)
    path, model, _ = saved(tmp_path, seed=1)
    other = new_model(seed=2)
    load_checkpoint(path, other)
    assert all(map(torch.equal, model.parameters(), other.parameters()))


def test_atomic_write_keeps_the_old_file_when_it_fails(tmp_path, monkeypatch):
    path = tmp_path / "a/config.json"
    write_atomically(path, b"old")
    monkeypatch.setattr(os, "replace", lambda a, b: (_ for _ in ()).throw(OSError("no")))
    with pytest.raises(OSError):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in path.parent.iterdir()] == ["config.json"]


def test_average_of_equal_checkpoints_is_the_identity_to_the_bit(tmp_path):
    path, model, _ = saved(tmp_path)
    for count in (1, 3, 7):
        averaged = average_checkpoints([path] * count)
        assert averaged.keys() == distinct_tensors(model).keys()
        for name, tensor in distinct_tensors(model).items():
            assert torch.equal(averaged[name], tensor) and averaged[name].dtype == torch.float32


def test_average_is_the_mean_with_the_tied_matrix_once(tmp_path):
    paths = [saved(tmp_path, step=k, seed=k)[0] for k in (1, 2, 3)]
    averaged = average_checkpoints(paths)
    single = [load_file(path / "model.safetensors") for path in paths]
    for name, tensor in averaged.items():
        expected = torch.stack([tensors[name].double() for tensors in single]).mean(0)
        assert torch.allclose(tensor.double(), expected, atol=1e-7)
    model = new_model()
    fill_model(model, averaged, "the mean")
    assert model.generator.table.weight is model.source_embeddings.table.weight
    assert sum(tensor.numel() for tensor in averaged.values()) == count_parameters(model)


def test_average_accumulates_in_float64(tmp_path):
    model = new_model()
    paths = []
    for step, value in enumerate([2.0**24, 1.0, 1.0, 2.0], 1):
        with torch.no_grad():
            model.generator.table.weight.fill_(value)
        paths.append(save_checkpoint(tmp_path, step, model, new_adam(model), {}))
    # Summed in float32 the two ones vanish beside 2^24.
    assert average_checkpoints(paths)[TIED].unique().tolist() == [(2.0**24 + 4) / 4]


def test_average_of_different_models_is_refused(tmp_path):
    one, other = saved(tmp_path / "a")[0], saved(tmp_path / "b", vocab_size=21)[0]
    with pytest.raises(ValueError, match="of different models"):
        average_checkpoints([one, other])
    with pytest.raises(ValueError, match="no checkpoint"):
        average_checkpoints([])


def test_more_checkpoints_than_there_are_is_refused_with_both_numbers(tmp_path):
    saved(tmp_path, step=1)
    saved(tmp_path, step=2)
    both = list_checkpoints(tmp_path)
    assert last_checkpoints(tmp_path, 2) == both and last_checkpoints(tmp_path, 1) == both[1:]
    assert [path.name for path in both] == ["step-00000001", "step-00000002"]
    for count in (3, 0):
        with pytest.raises(ValueError, match=f"{count} checkpoints asked for, .* holds 2"):
            last_checkpoints(tmp_path, count)


def run_folder(tmp_path, model):
    settings = {"model": {k: v for k, v in vars(model.config).items()}}
    (tmp_path / "config.json").write_text(json.dumps(settings), encoding="utf-8")


def test_load_model_prefers_the_average_and_takes_the_last_checkpoint_else(tmp_path):
    saved(tmp_path, step=1, seed=1)
    _, last, _ = saved(tmp_path, step=2, seed=2)
    run_folder(tmp_path, last)
    loaded = load_model(tmp_path)
    assert not loaded.training and loaded.config == last.config
    assert all(map(torch.equal, loaded.parameters(), last.parameters()))
    mean = average_checkpoints(last_checkpoints(tmp_path, 2))
    save_model(tmp_path / "averaged.safetensors", mean)
    assert torch.equal(load_model(tmp_path).generator.table.weight, mean[TIED])


def test_load_model_of_an_empty_run_says_what_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match="no averaged.safetensors and no checkpoint"):
        load_model(tmp_path)


def test_saved_model_round_trips_with_the_tied_matrix_once(tmp_path):
    model = new_model()
    save_model(tmp_path / "model.safetensors", model)
    tensors = read_tensors(tmp_path / "model.safetensors")
    other = new_model(seed=9)
    fill_model(other, tensors, "file")
    assert all(map(torch.equal, model.parameters(), other.parameters()))
    assert [p.name for p in Path(tmp_path).iterdir()] == ["model.safetensors"]
