"""Saves and loads of torch's state dicts: any sharding, on any mesh, with equal bits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import models
import numpy
import pytest
import ranks
import torch

import weightloom as wl

KINDS = ("plain", "fsdp", "tp", "fsdp_tp", "tied")


def state_of(kind: str) -> dict[str, Any]:
    """The state of a model and its optimizer on the mesh of a kind."""
    import torch.distributed as dist
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.device_mesh import init_device_mesh

    world = dist.get_world_size() if dist.is_initialized() else 1
    if kind == "plain":
        model = models.llama()
    elif kind in ("fsdp", "tied"):
        model = models.fsdp(init_device_mesh("cpu", (world,), mesh_dim_names=("dp",)), tied=kind == "tied")
    elif kind == "tp":
        # Two heads of keys and values are divided among two ranks at most.
        shape = (world // 2, 2) if world > 2 else (1, world)
        model = models.tensor_parallel(init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))["tp"])
    else:
        shape = (world // 2, 2) if world > 2 else (world, 1)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))
        model = models.fsdp_of_tensor_parallel(mesh)
    if kind == "tied":
        return {"model": model.state_dict()}
    named, optimizer = get_state_dict(model, models.stepped(model))
    return {"model": named, "optimizer": optimizer}


def values(epoch: int) -> dict[str, Any]:
    """Nested entries that are not distributed."""
    return {
        "epoch": epoch,
        "rates": [0.1 * epoch, None, 1e-4],
        "betas": (0.9, 0.95) if epoch else (0.0, 0.0),
        "name": "run" if epoch else "",
        "deep": {"list": [{"t": torch.full((3,), float(epoch)), "n": epoch}, 2 * epoch], "empty": {}},
    }


def save_all(rank: int, folder: Path, into: str) -> dict[str, Any]:
    """Saves each kind of state; raw state of an optimizer; and with `torch.distributed.checkpoint`."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh

    reports = {}
    for kind in KINDS:
        state = state_of(kind)
        models.fill(state["model"])
        models.fill(state.get("optimizer", {}), "optimizer")
        report = wl.save(state | values(3), f"{into}/{kind}", step=3, assets=models.config(tied=kind == "tied"))
        reports[kind] = report.model_fingerprint
        if kind == "fsdp_tp":
            dcp.save(state | values(3), checkpoint_id=f"{into}/dcp")
            for name in state["model"]:
                assert state["model"][name]._local_tensor.data_ptr(), name
    model = models.fsdp(init_device_mesh("cpu", (int(os.environ.get("WORLD", "4")),)))
    optimizer = models.stepped(model)
    models.fill(optimizer.state_dict(), "optimizer")
    handle = wl.save_async({"model": model, "optimizer": optimizer, "epoch": 3}, f"{into}/raw")
    reports["raw"] = handle.wait().model_fingerprint
    return reports


def load_all(rank: int, folder: Path, source: str, into: str | None, pairs: list[list[str]]) -> list[str]:
    """Loads what was saved as one kind into another, and saves it again."""
    wrong = []
    for saved, kind in pairs:
        state = state_of(kind) | values(0)
        models.clear(state)
        report = wl.load(state, f"{source}/{saved}")
        wrong += [f"{saved}->{kind}: {name}" for name in models.differences(state["model"])]
        wrong += [f"{saved}->{kind}: {name}" for name in models.differences(state.get("optimizer", {}), "optimizer")]
        wrong += [f"{saved}->{kind}: {name} missing or unread" for name in (*report.missing, *report.unread)]
        found = {name: state[name] for name in values(0)}
        if repr(found) != repr(values(3)):
            wrong.append(f"{saved}->{kind}: {found}")
        groups = state.get("optimizer", {}).get("param_groups", [{"lr": 3e-4, "betas": (0.9, 0.95)}])
        if (groups[0]["lr"], groups[0]["betas"]) != (3e-4, (0.9, 0.95)):
            wrong.append(f"{saved}->{kind}: {groups}")
        if into is not None:
            wl.save(state, f"{into}/{saved}")
    return wrong


def load_raw(rank: int, folder: Path, source: str) -> list[str]:
    """Loads modules and optimizers, which are asked for their state and given it."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = models.fsdp(mesh)
    optimizer = models.stepped(model)
    models.clear(model.state_dict())
    models.clear(optimizer.state_dict())
    for group in optimizer.param_groups:
        group["lr"] = 1.0
    state = {"model": model, "optimizer": optimizer, "epoch": 0}
    wl.load(state, f"{source}/raw")
    wrong = models.differences(model.state_dict()) + models.differences(optimizer.state_dict(), "optimizer")
    if (state["epoch"], optimizer.param_groups[0]["lr"]) != (3, 3e-4):
        wrong.append(f"{state['epoch']}, {optimizer.param_groups[0]['lr']}")
    return wrong


def load_on_two(rank: int, folder: Path, source: str, into: str) -> list[str]:
    pairs = [["fsdp", "tp"], ["tp", "fsdp"], ["fsdp_tp", "fsdp_tp"], ["plain", "fsdp"], ["tied", "tied"]]
    return load_all(rank, folder, source, into, pairs) + load_raw(rank, folder, source)


def load_on_four(rank: int, folder: Path, source: str) -> list[str]:
    wrong = load_all(rank, folder, source, None, [["fsdp", "fsdp_tp"], ["tp", "plain"], ["fsdp_tp", "tp"]])
    # What torch saved has the names of its own.
    state = state_of("fsdp") | values(0)
    models.clear(state)
    wl.load(state, f"{source}/../four/dcp")
    wrong += models.differences(state["model"]) + models.differences(state["optimizer"], "optimizer")
    return wrong if repr({name: state[name] for name in values(0)}) == repr(values(3)) else [*wrong, "values"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What four ranks saved (`four`), what two ranks made of it (`two`), and what one made of that (`one`)."""
    folder = tmp_path_factory.mktemp("saved")
    reports = ranks.run(4, "test_save_load.save_all", into=str(folder / "four"))
    assert all(of_rank == reports[0] for of_rank in reports)
    # The same values have the same fingerprint, however they are divided.
    assert len({reports[0][kind] for kind in ("plain", "fsdp", "tp", "fsdp_tp", "raw")}) == 1
    return folder


def test_from_four_ranks_to_two_to_one_to_four(saved: Path) -> None:
    assert ranks.run(2, "test_save_load.load_on_two", source=str(saved / "four"), into=str(saved / "two")) == [[], []]
    pairs = [["fsdp", "plain"], ["tp", "plain"], ["fsdp_tp", "plain"], ["plain", "plain"]]
    assert load_all(0, saved, str(saved / "two"), str(saved / "one"), pairs) == []
    assert ranks.run(4, "test_save_load.load_on_four", source=str(saved / "one")) == [[], [], [], []]


@pytest.mark.parametrize("kind", KINDS)
def test_transformers_loads_what_was_saved(saved: Path, kind: str) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        saved / "four" / kind, dtype="float32", attn_implementation="eager"
    )
    assert models.differences(model.state_dict()) == []
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == (kind == "tied")
    tokens = torch.arange(8)[None]
    assert torch.equal(model(tokens).logits, models.llama(tied=kind == "tied").eval()(tokens).logits)


@pytest.mark.parametrize("kind", ["fsdp", "fsdp_tp"])
def test_torch_loads_what_was_converted(saved: Path, kind: str, tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    wl.convert(saved / "four" / kind, tmp_path / "dcp", to="dcp")
    state = state_of("plain") | values(0)
    models.clear(state)
    dcp.load(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert models.differences(state["model"]) == []
    assert models.differences(state["optimizer"], "optimizer") == []
    assert state["epoch"] == 3


def test_torch_loads_what_was_saved_for_it(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    state = state_of("plain") | values(3)
    models.fill(state["model"])
    wl.save(state, tmp_path / "dcp", format="dcp")
    models.clear(state)
    dcp.load(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert models.differences(state["model"]) == []


def test_what_torch_saved_is_loaded(saved: Path) -> None:
    state = state_of("plain") | values(0)
    models.clear(state)
    report = wl.load(state, saved / "four" / "dcp")
    assert (report.missing, report.unread) == ((), ())
    assert models.differences(state["model"]) == []
    assert models.differences(state["optimizer"], "optimizer") == []
    assert repr({name: state[name] for name in values(0)}) == repr(values(3))
    # A model's own state dict finds its entries too.
    model = models.llama()
    models.clear(model.state_dict())
    wl.load(model, saved / "four" / "dcp")
    assert models.differences(model.state_dict()) == []


def test_tied_tensors_are_loaded_once(saved: Path, tmp_path: Path) -> None:
    model: Any = models.llama(tied=True)
    models.clear(model.state_dict())
    assert wl.load(model, saved / "four" / "tied").missing == ()
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    assert models.differences(model.state_dict()) == []
    # One of them is enough.
    state = models.llama(tied=True).state_dict()
    del state["lm_head.weight"]
    wl.save(state, tmp_path / "once")
    models.clear(model.state_dict())
    assert wl.load(model, tmp_path / "once").missing == ()
    assert models.differences(model.state_dict()) == []


def test_dtypes_and_memory_of_any_order(tmp_path: Path) -> None:
    kinds = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int16,
             torch.int8, torch.uint8, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2)  # fmt: skip
    base = torch.arange(-6.0, 6.0).reshape(3, 4)
    state: dict[str, Any] = {str(kind): base.to(kind) for kind in kinds}
    state |= {
        "transposed": base.t(),
        "every second": torch.arange(10.0)[::2],
        "scalar": torch.tensor(5),
        "empty": torch.empty(0, 3),
        "expanded": torch.ones(1).expand(4),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "array": numpy.arange(6).reshape(2, 3),
        "array transposed": numpy.arange(6.0).reshape(2, 3).T,
    }
    wl.save(state, tmp_path / "saved")
    stored = wl.open(tmp_path / "saved")
    for name, value in state.items():
        value = torch.from_numpy(value.copy()) if isinstance(value, numpy.ndarray) else value.detach().contiguous()
        assert models.bits_equal(stored[name].torch(), value), name

    wanted: dict[str, Any] = {name: torch.full_like(torch.as_tensor(value), 1) for name, value in state.items()}
    wanted["transposed"] = torch.zeros(3, 4).t()
    wanted["every second"] = torch.zeros(10)[::2]
    wanted["torch.float32"] = torch.zeros(3, 4, dtype=torch.bfloat16)
    wanted["torch.bfloat16"] = torch.zeros(3, 4, dtype=torch.float32)
    wanted["parameter"] = torch.nn.Parameter(torch.zeros(2))
    wanted["array"] = numpy.zeros((2, 3), numpy.int64)
    wanted["array transposed"] = numpy.zeros((2, 3)).T
    del wanted["expanded"]
    parameter = wanted["parameter"]
    before = parameter._version
    report = wl.load(wanted, tmp_path / "saved")
    assert report.unread == ("expanded",)
    assert parameter is wanted["parameter"]
    assert parameter._version > before
    for name, value in wanted.items():
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(state[name]).to(torch.as_tensor(value).dtype)), name


def test_missing_entries_are_listed_before_anything_is_read(tmp_path: Path) -> None:
    wl.save({"model": {"layer.weight": torch.ones(2), "bias": torch.ones(2)}, "step": 1}, tmp_path / "saved")
    state = {"model": {"layer.weights": torch.zeros(2), "bias": torch.zeros(2), "other": torch.zeros(1)}, "epoch": 5}
    with pytest.raises(wl.MissingTensor) as raised:
        wl.load(state, tmp_path / "saved")
    assert isinstance(raised.value, KeyError)
    for text in ("lacks 3 entries", "layer.weights (did you mean `layer.weight`?)", "other", "epoch", "strict=False"):
        assert text in str(raised.value)
    assert state["model"]["bias"].tolist() == [0, 0]
    report = wl.load(state, tmp_path / "saved", strict=False)
    assert report.missing == ("layer.weights", "other", "epoch")
    assert report.unread == ("layer.weight",)
    assert state["model"]["bias"].tolist() == [1, 1]
    assert state["epoch"] == 5


def test_other_shapes_are_listed(tmp_path: Path) -> None:
    wl.save({"a": torch.ones(2), "b": torch.ones(2)}, tmp_path / "saved")
    state = {"a": torch.zeros(3), "b": torch.zeros(2)}
    with pytest.raises(wl.UserError, match=r"1 tensor of another shape:\n  a: \[3\] in the state dict, \[2\] in the"):
        wl.load(state, tmp_path / "saved")
    assert state["b"].tolist() == [0, 0]


def test_what_cannot_be_saved_is_an_error(tmp_path: Path) -> None:
    for state, text in (
        ({"w": torch.ones(2, dtype=torch.complex64)}, "`w`: its dtype is torch.complex64"),
        ({"w": torch.ones(2, device="meta")}, "`w`: it is without memory"),
        ({"w": torch.ones(2).to_sparse()}, "`w`: it is sparse"),
        ({"f": print}, "`f`: a builtin_function_or_method is neither a tensor nor JSON"),
        ({"a": {"b.c": 1}, "a.b": {"c": 2}}, "both become `a.b.c`"),
        ({(1, 2): 3}, "the key (1, 2)"),
        (3, "a int: it is not a dict"),
    ):
        with pytest.raises(wl.UserError) as raised:
            wl.save(state, tmp_path / "saved")
        assert text in str(raised.value)
        assert raised.value.hint
    assert list(tmp_path.iterdir()) == []
    wl.save({"w": torch.ones(2)}, tmp_path / "saved")
    with pytest.raises(wl.UserError, match="exists"):
        wl.save({"w": torch.ones(2)}, tmp_path / "saved")


def test_assets_are_saved(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    wl.save({"w": torch.ones(2)}, tmp_path / "a", assets=folder)
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == [
        "model.safetensors", "tokenizer.json", "weightloom.json",
    ]  # fmt: skip
    assert wl.open(tmp_path / "a")["w"].shape == (2,)
    wl.save({"w": torch.ones(2)}, tmp_path / "b", format="hf", assets=[models.config(), {"note.txt": "text"}])
    assert (tmp_path / "b" / "note.txt").read_text() == "text"
    assert '"hidden_size": 32' in (tmp_path / "b" / "config.json").read_text()
    assert not (tmp_path / "b" / "weightloom.json").exists()
    with pytest.raises(wl.UserError, match="there is no folder"):
        wl.save({"w": torch.ones(2)}, tmp_path / "c", assets=tmp_path / "nowhere")


def test_background_saves_follow_one_another(tmp_path: Path) -> None:
    weight = torch.zeros(1 << 20)
    handles = []
    for step in range(3):
        weight.fill_(step)
        handles.append(wl.save_async({"w": weight}, tmp_path / f"step_{step}", step=step))
    weight.fill_(9)
    wl.save({"w": weight}, tmp_path / "step_9")
    assert handles[2].done()
    for step, handle in enumerate(handles):
        report = handle.wait()
        assert handle.wait() is report
        assert report.stall <= report.seconds
        assert wl.open(tmp_path / f"step_{step}")["w"].torch()[-1] == step
    assert "complete" in repr(handles[0])


def test_a_failure_in_the_background_is_not_lost(tmp_path: Path) -> None:
    def fail(name: str) -> wl.SaveHandle:
        handle = wl.save_async({"w": torch.zeros(8 << 20)}, tmp_path / name)
        # A folder that goes away while it is written.
        for file in tmp_path.glob(f".{name}*/*"):
            file.unlink()
        (tmp_path / name).mkdir()
        (tmp_path / name / "other").touch()
        return handle

    handle = fail("a")
    with pytest.raises(wl.WeightloomError) as raised:
        handle.wait()
    assert handle.done()
    assert "failed" in repr(handle)
    with pytest.raises(wl.WeightloomError):
        handle.wait()
    # Nobody waits for the next one.
    fail("b")
    with pytest.raises(wl.WeightloomError) as raised:
        wl.save({"w": torch.ones(2)}, tmp_path / "c")
    assert not (tmp_path / "c").exists()
    assert raised.value.message
    wl.save({"w": torch.ones(2)}, tmp_path / "c")


@pytest.fixture
def slow_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies in the background begin late, so that whoever does not wait for them is noticed."""
    from weightloom import _save

    copy = _save.Saver._copy

    def late(self: _save.Saver, *arguments: Any) -> None:
        time.sleep(0.3)
        copy(self, *arguments)

    monkeypatch.setattr(_save.Saver, "_copy", late)


@pytest.mark.usefixtures("slow_copies")
def test_optimizers_wait_for_a_copy_in_the_background(tmp_path: Path) -> None:
    model = torch.nn.Linear(8, 8)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    begin = time.monotonic()
    handle = wl.save_async(model.state_dict(), tmp_path / "step_1", copy="background")
    assert time.monotonic() - begin < 0.3 and not handle.done()
    model(torch.ones(1, 8)).sum().backward()
    optimizer.step()
    assert time.monotonic() - begin >= 0.3
    assert not torch.equal(model.weight, before["weight"])
    report = handle.wait()
    assert 0.2 < report.stall <= time.monotonic() - begin
    stored = wl.open(tmp_path / "step_1")
    assert all(models.bits_equal(stored[name].torch(), tensor) for name, tensor in before.items())
    # Nothing is left behind in torch.
    from torch.optim.optimizer import _global_optimizer_pre_hooks

    assert not _global_optimizer_pre_hooks


@pytest.mark.usefixtures("slow_copies")
def test_what_follows_a_copy_in_the_background_waits_for_it(tmp_path: Path) -> None:
    weight = torch.ones(4)
    wl.save({"w": torch.zeros(4)}, tmp_path / "zeros")
    handle = wl.save_async({"w": weight}, tmp_path / "ones", copy="background")
    # A load into the same tensor is a change.
    wl.load({"w": weight}, tmp_path / "zeros")
    handle.wait()
    assert wl.open(tmp_path / "ones")["w"].torch().tolist() == [1.0] * 4
    # A failure shows in `wait`, and is no failure of what follows.
    failing = wl.save_async({"w": weight}, tmp_path / "ones", copy="background")
    failing.wait_copied()
    with pytest.raises(wl.UserError, match="ones"):
        failing.wait()
    assert failing.done() and "failed" in repr(failing)
    wl.save({"w": weight}, tmp_path / "after")


def copy_in_background(rank: int, folder: Path, into: str) -> str:
    """Saves twice in a row, each time with a copy in the background."""
    from torch.distributed.device_mesh import init_device_mesh

    model = models.fsdp(init_device_mesh("cpu", (2,)))
    models.fill(model.state_dict())
    first = wl.save_async({"model": model}, f"{into}/first", copy="background")
    second = wl.save_async({"model": model}, f"{into}/second", copy="background")
    assert first.wait().fingerprint == second.wait().fingerprint
    return wl.save({"model": model}, f"{into}/third").fingerprint


def test_ranks_copy_in_the_background(tmp_path: Path) -> None:
    found = ranks.run(2, "test_save_load.copy_in_background", into=str(tmp_path))
    assert {wl.open(tmp_path / name).fingerprint() for name in ("first", "second", "third")} == set(found)


def test_the_end_of_the_program_waits(tmp_path: Path) -> None:
    script = """
import sys, torch, weightloom as wl
wl.save_async({"w": torch.ones(16 << 20)}, sys.argv[1])
if sys.argv[2:]:
    import pathlib
    target = pathlib.Path(sys.argv[1])
    target.mkdir()
    (target / "other").touch()
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}

    def program(*arguments: str) -> str:
        command = [sys.executable, "-c", script, *arguments]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stderr

    assert program(str(tmp_path / "whole")) == ""
    assert wl.open(tmp_path / "whole")["w"].torch().sum() == 16 << 20
    assert "weightloom: the save to" in program(str(tmp_path / "failed"), "fail")


class OnDevice:
    """Makes tensors look as if they were on a device, and counts the bytes that are staged at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from weightloom import _load_target, _state, _tensor_memory

        self.pinned = _tensor_memory.PINNED
        self.peak = 0
        take = self.pinned.take

        def counted(length: int) -> torch.Tensor:
            slot = take(length)
            self.peak = max(self.peak, self.pinned.allocated)
            return slot

        monkeypatch.setattr(self.pinned, "take", counted)
        monkeypatch.setattr(_state, "is_on_host", lambda tensor: False)
        monkeypatch.setattr(_load_target, "is_on_host", lambda tensor: False)


def test_tensors_of_a_device_pass_through_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = OnDevice(monkeypatch)
    state = {f"w{number}": torch.randn(1 << 20) for number in range(12)} | {"odd": torch.arange(7)[::2]}
    wl.save(state, tmp_path / "saved")
    assert 0 < device.peak <= 16 << 20
    report = wl.save_async(state, tmp_path / "later").wait()
    assert device.peak <= 32 << 20
    assert device.pinned.allocated == 0
    stored = wl.open(tmp_path / "later")
    assert report.fingerprint == stored.fingerprint() == wl.open(tmp_path / "saved").fingerprint()
    wanted = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    monkeypatch.setattr("weightloom._load_target.STAGED_BYTES", 9 << 20)
    groups: list[int] = []
    native = wl._weightloom.load_state
    monkeypatch.setattr(
        "weightloom._weightloom.load_state", lambda *arguments: groups.append(len(arguments[2])) or native(*arguments)
    )
    wl.load(wanted, tmp_path / "later")
    # Two large tensors each, and the small one beside them.
    assert sorted(groups) == [2, 2, 2, 2, 2, 3]
    assert all(models.bits_equal(wanted[name], state[name].contiguous()) for name in state)


def save_and_die(rank: int, folder: Path, into: str) -> dict[str, Any]:
    """Ranks save again and again until one is killed."""
    state = {"w": torch.ones(4 << 20), "epoch": 0}
    for step in range(1000):
        state["epoch"] = step
        try:
            wl.save(state, f"{into}/step_{step}", timeout=5.0)
        except wl.WeightloomError as error:
            return {"error": type(error).__name__, "text": str(error), "step": step}
        (folder / f"saved{step}").touch()
    return {}


def test_a_killed_save_leaves_the_checkpoints_before_it(tmp_path: Path) -> None:
    running = ranks.start(2, "test_save_load.save_and_die", into=str(tmp_path))
    running.wait_for("saved2")
    time.sleep(0.05)
    running.processes[1].send_signal(signal.SIGKILL)
    began = time.monotonic()
    first, second = running.outcomes()
    assert time.monotonic() - began < 60
    assert second.code == -signal.SIGKILL
    assert first.code == 0, first.error
    assert first.result["error"] == "OperationalError"
    complete = [path for path in tmp_path.iterdir() if not path.name.startswith(".")]
    assert len(complete) >= 3
    for path in complete:
        state = {"w": torch.zeros(4 << 20), "epoch": -1}
        wl.load(state, path)
        wl.verify(path)
        assert path.name == f"step_{state['epoch']}"
        assert bool((state["w"] == 1).all())
    # The next save is not disturbed by what is left.
    wl.save(state, tmp_path / f"step_{first.result['step'] + 1}")


def save_once(rank: int, folder: Path, into: str) -> str:
    """Processes that do not know of one another save to one folder."""
    import torch.distributed as dist

    dist.barrier()
    dist.destroy_process_group()
    try:
        wl.save({"w": torch.full((8 << 20,), float(rank))}, into)
    except wl.WeightloomError as error:
        return str(error)
    return ""


def test_two_processes_cannot_save_to_one_folder(tmp_path: Path) -> None:
    texts = ranks.run(2, "test_save_load.save_once", into=str(tmp_path / "saved"))
    failed = [text for text in texts if text]
    assert len(failed) == 1
    assert "exists" in failed[0] or "another process" in failed[0] or "is writing it" in failed[0]
    wl.verify(tmp_path / "saved")
    assert wl.open(tmp_path / "saved")["w"].torch()[0] == texts.index("")


def test_a_thousand_saves_leak_nothing(tmp_path: Path) -> None:
    state = {"w": torch.ones(64, 64), "n": 1}

    def amounts() -> tuple[int, int, int]:
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        descriptors = len(list(Path("/proc/self/fd").iterdir()))
        return descriptors, int(status["Threads"]), int(status["VmRSS"].split()[0])

    def save(number: int) -> None:
        if number % 2:
            wl.save_async(state, tmp_path / f"{number}").wait()
        else:
            wl.save(state, tmp_path / f"{number}")
        wl.load(state, tmp_path / f"{number}")

    for number in range(100):
        save(number)
    descriptors, threads, resident = amounts()
    for number in range(100, 1100):
        save(number)
    after = amounts()
    assert after[0] <= descriptors
    assert after[1] <= threads
    # A copy of the tensor for each save would be 16 MiB.
    assert after[2] < resident + 4096, "more than 4 MiB grew in 1,000 saves"


def test_a_forked_process_saves_alone(tmp_path: Path) -> None:
    wl.save_async({"w": torch.ones(2)}, tmp_path / "parent").wait()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            wl.save_async({"w": torch.zeros(2)}, tmp_path / "child").wait()
            wl.load({"w": torch.ones(2)}, tmp_path / "parent")
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert wl.open(tmp_path / "child")["w"].torch().tolist() == [0, 0]
