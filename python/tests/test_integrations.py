"""Hooks of other trainers: what they save through us is complete, readable elsewhere, and resumes with equal bits."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections import OrderedDict, namedtuple
from enum import Enum
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

import models
import numpy
import pytest
import ranks
import torch

import weightloom as wl
from weightloom.integrations import _replacement
from weightloom.integrations._replacement import current, save_replacing
from weightloom.integrations._structure import Structure


def flip(file: Path, offset: int = -1) -> None:
    """Damages a file."""
    content = bytearray(file.read_bytes())
    content[offset] ^= 0x41
    file.write_bytes(content)


# Replacements


def die(*_: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def die_at_second_rename(monkeypatch: Any) -> None:
    renames = iter([Path.rename, die])
    monkeypatch.setattr(_replacement, "_exchange", lambda *_: False)
    monkeypatch.setattr(_replacement.Path, "rename", lambda path, to: next(renames)(path, to))


POINTS = {
    "before the exchange": (1, lambda patch: patch.setattr(_replacement, "_replace", die)),
    "after the exchange": (2, lambda patch: patch.setattr(_replacement, "_sync", die)),
    "between two renames": (2, die_at_second_rename),
    "after two renames": (
        2,
        lambda patch: (
            patch.setattr(_replacement, "_exchange", lambda *_: False),
            patch.setattr(_replacement, "_sync", die),
        ),
    ),
}


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_replacement_leaves_a_complete_checkpoint(
    point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, kill = POINTS[point]
    target = tmp_path / "last"
    save_replacing({"w": torch.tensor([1.0])}, target)
    child = os.fork()
    if child == 0:
        try:
            kill(monkeypatch)
            save_replacing({"w": torch.tensor([2.0])}, target)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    wl.verify(current(target))
    assert wl.open(current(target))["w"].torch().tolist() == [expected]
    assert current(target) == target or point == "between two renames"
    # A save that fails changes nothing, and the next one ends what was cut off.
    with pytest.raises(wl.UserError):
        save_replacing({"f": print}, target)
    assert wl.open(target)["w"].torch().tolist() == [expected]
    save_replacing({"w": torch.tensor([3.0])}, target)
    assert wl.open(target)["w"].torch().tolist() == [3]
    assert [path.name for path in tmp_path.iterdir()] == ["last"]


def test_what_lies_beside_a_checkpoint_is_left_alone(tmp_path: Path) -> None:
    for name in ("last.old", "last.new", "last"):
        (tmp_path / name).write_text(name)
    save_replacing({"w": torch.ones(1)}, tmp_path / "last")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last", "last.new", "last.old"]
    # What a user has removed does not come back.
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone").rename(tmp_path / ".gone.weightloom-new")
    assert current(tmp_path / "gone") == tmp_path / "gone"


# Structures


class Colour(Enum):
    RED = "red"


Pair = namedtuple("Pair", "a b")

KINDS: list[tuple[Any, Any]] = [
    *((value, value) for value in (None, True, 3, -0.5, float("inf"), "text", b"\x00\xff", [], (), {}, set())),
    *((value, value) for value in ([1, [2]], (1, (2,)), {1, 2}, frozenset({"a"}), {"a": {"b": None}})),
    ({0: "a", None: 1, (1, 2): [3], True: 4, 1.5: 5}, {0: "a", None: 1, (1, 2): [3], True: 4, 1.5: 5}),
    ({"kind": "tuple", "items": [1]}, {"kind": "tuple", "items": [1]}),
    (bytearray(b"x"), b"x"),
    (PurePosixPath("a/b"), Path("a/b")),
    (Colour.RED, "red"),
    (OrderedDict(a=1), {"a": 1}),
    (Pair(1, 2), (1, 2)),
    (torch.Size([2, 3]), (2, 3)),
    (numpy.float32(1.5), 1.5),
    (numpy.float64(1.5), 1.5),
    (numpy.int64(3), 3),
    (numpy.bool_(True), True),
]


@pytest.mark.parametrize(("value", "expected"), KINDS, ids=[repr(value)[:30] for value, _ in KINDS])
def test_structures_survive_json(value: Any, expected: Any) -> None:
    taken = Structure.of({"x": value})
    found = Structure(json.loads(json.dumps(taken.json)), {}).restored({})["x"]
    assert found == expected
    assert type(found) is type(expected)
    assert repr(found) == repr(expected)
    assert taken.tensors == {}


def test_structures_keep_tensors_aside() -> None:
    state = {"a": {"b": torch.ones(2)}, "a.b": [torch.tensor(3), numpy.arange(2)], 0: torch.zeros(0, 2)}
    taken = Structure.of(state)
    assert sorted(taken.tensors) == ["0", "a.b", "a.b.0", "a.b.1"]
    stored = {name: torch.as_tensor(tensor).clone() for name, tensor in taken.tensors.items()}
    found = Structure(json.loads(json.dumps(taken.json)), {}).restored(stored)
    assert repr(found) == repr(state)
    # Two tensors of one name.
    taken = Structure.of({"a": {"b": torch.ones(2)}, "a.b": torch.zeros(2)})
    assert repr(taken.restored(taken.tensors)) == repr({"a": {"b": torch.ones(2)}, "a.b": torch.zeros(2)})


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def test_what_is_no_structure_is_an_error() -> None:
    endless: list[Any] = []
    endless.append(endless)
    for value in (print, object(), 1j, torch.nn.Linear(1, 1), endless, {print: 1}):
        with pytest.raises(wl.UserError, match=r"cannot save `x|contains itself"):
            Structure.of({"x": value})
    for text in (
        {"kind": "pickle", "bytes": ""},
        {"kind": ["list"]},
        {"kind": "__import__", "items": []},
        {},
        {"items": []},
        {"kind": "tensor"},
        {"kind": "tensor", "name": "none"},
        {"kind": "tensor", "name": []},
        {"kind": "array", "name": "text"},
        {"kind": "bytes", "base64": "?"},
        {"kind": "bytes", "base64": "ä"},
        {"kind": "dict", "items": [1]},
        {"kind": "dict", "items": [[1]]},
        {"kind": "dict", "items": [[[1], 2]]},
        {"kind": "set", "items": [[1]]},
        {"kind": "tuple", "items": None},
        {"kind": "path", "path": 3},
        nested(100_000),
    ):
        with pytest.raises(wl.UserError, match="cannot restore"):
            Structure(text, {}).restored({"text": "no array"})


# transformers


def trainer(folder: Path, callback: Any, model: Any = None, **options: Any) -> Any:
    from transformers import Trainer, TrainingArguments

    model = models.llama() if model is None else model
    arguments: dict[str, Any] = {"max_steps": 4, "save_steps": 2, "per_device_train_batch_size": 2} | options
    arguments |= {"use_cpu": True, "report_to": [], "disable_tqdm": True, "seed": 1, "learning_rate": 0.01}
    rows = [{"input_ids": row, "labels": row} for row in torch.arange(64).reshape(8, 8)]
    return Trainer(model, TrainingArguments(str(folder), **arguments), train_dataset=rows, callbacks=[callback])


def test_a_trainer_saves_and_resumes(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    from weightloom.integrations.transformers import WeightloomCallback

    callback = WeightloomCallback()
    first = trainer(tmp_path, callback)
    first.train()
    assert sorted(callback.reports) == [2, 4]
    for step, report in callback.reports.items():
        folder = tmp_path / f"checkpoint-{step}"
        assert report.fingerprint == wl.open(folder / "weightloom").fingerprint()
        assert wl.diff(folder / "model.safetensors", folder / "weightloom").equal
        assert wl.open(folder / "weightloom").step == step
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint-4/weightloom")
    assert all(models.bits_equal(tensor, first.model.state_dict()[name]) for name, tensor in loaded.state_dict().items())

    # The same training again from the middle gives the same weights, in the same place.
    resumed = WeightloomCallback()
    trainer(tmp_path, resumed).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert {4: callback.reports[4].fingerprint} == {step: report.fingerprint for step, report in resumed.reports.items()}


def test_a_trainer_does_not_resume_from_damage(tmp_path: Path) -> None:
    from weightloom.integrations.transformers import WeightloomCallback

    trainer(tmp_path, WeightloomCallback(), max_steps=2).train()
    checkpoint = tmp_path / "checkpoint-2"

    def resume(**options: Any) -> None:
        callback = WeightloomCallback(**options)
        trainer(tmp_path, callback, max_steps=3).train(resume_from_checkpoint=str(checkpoint))

    # Of the trainer's file, the last bytes belong to one tensor.
    flip(checkpoint / "model.safetensors")
    [damaged] = wl.diff(checkpoint / "model.safetensors", checkpoint / "weightloom").changed
    with pytest.raises(wl.CheckFailed, match=rf"1 tensor of the model .*\n  {damaged}"):
        resume()
    resume(check=False)
    flip(checkpoint / "model.safetensors")
    resume()
    # Of our file.
    flip(checkpoint / "weightloom" / "model.safetensors")
    with pytest.raises(wl.CheckFailed):
        resume()


def test_a_trainer_saves_in_the_background(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from weightloom.integrations.transformers import WeightloomCallback

    callback = WeightloomCallback(background=True)
    one = trainer(tmp_path, callback, save_steps=1, save_total_limit=1)
    removed = []
    remove = shutil.rmtree

    def watched(path: Any, *arguments: Any, **options: Any) -> None:
        if Path(path).parent == tmp_path:
            removed.append((Path(path).name, callback._saving))
        remove(path, *arguments, **options)

    monkeypatch.setattr(shutil, "rmtree", watched)
    one.train()
    assert sorted(callback.reports) == [1, 2, 3, 4]
    # The trainer removes no checkpoint that is still being written.
    assert removed == [("checkpoint-1", None), ("checkpoint-2", None), ("checkpoint-3", None)]
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-4"]
    assert callback.reports[4].fingerprint == wl.open(tmp_path / "checkpoint-4/weightloom").fingerprint()


def test_a_trainer_saves_the_adapter_of_a_model(tmp_path: Path) -> None:
    from peft import LoraConfig, PeftModel, get_peft_model

    from weightloom.integrations.transformers import WeightloomCallback

    def adapted() -> Any:
        torch.manual_seed(3)
        return get_peft_model(models.llama(), LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))

    callback = WeightloomCallback()
    one = trainer(tmp_path, callback, adapted(), max_steps=2)
    one.train()
    folder = tmp_path / "checkpoint-2"
    ours, theirs = wl.open(folder / "weightloom/adapter"), wl.open(folder / "adapter_model.safetensors")
    assert callback.reports[2].fingerprint == ours.fingerprint() == theirs.fingerprint()
    loaded = PeftModel.from_pretrained(models.llama(), folder / "weightloom/adapter")
    tokens = torch.arange(8)[None]
    assert torch.equal(loaded.eval()(tokens).logits, one.model.eval()(tokens).logits)
    # The trainer finds its own adapter, and no other one in our folder.
    resumed = trainer(tmp_path, WeightloomCallback(), adapted(), max_steps=3)
    resumed.train(resume_from_checkpoint=str(folder))
    assert list(resumed.model.peft_config) == ["default"]
    flip(folder / "adapter_model.safetensors")
    with pytest.raises(wl.CheckFailed, match="1 tensor of the model"):
        trainer(tmp_path, WeightloomCallback(), adapted(), max_steps=3).train(resume_from_checkpoint=str(folder))


# accelerate


def test_accelerate_saves_and_loads(tmp_path: Path) -> None:
    from accelerate import Accelerator

    from weightloom.integrations.accelerate import register

    accelerator = Accelerator(cpu=True)
    first, second = torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)
    optimizer = torch.optim.AdamW(first.parameters())
    first, second, optimizer = accelerator.prepare(first, second, optimizer)
    accelerator.save_state(tmp_path / "before")
    hooks = register(accelerator)
    second(first(torch.ones(2, 3))).sum().backward()
    optimizer.step()
    expected = {name: tensor.clone() for model in (first, second) for name, tensor in model.state_dict().items()}
    for _ in range(2):
        accelerator.save_state(tmp_path / "state")
    assert not list((tmp_path / "state").glob("*.safetensors")) and (tmp_path / "state/optimizer.bin").exists()
    assert sorted(wl.open(tmp_path / "state/model")) == ["bias", "weight"]
    assert "num_batches_tracked" in wl.open(tmp_path / "state/model_1")

    def cleared() -> dict[str, torch.Tensor]:
        state = {name: tensor for model in (first, second) for name, tensor in model.state_dict().items()}
        models.clear(state)
        return state

    state = cleared()
    accelerator.load_state(tmp_path / "state")
    assert all(models.bits_equal(state[name], expected[name]) for name in expected)
    # A state without the folders.
    cleared()
    accelerator.load_state(tmp_path / "before")
    assert not (first.weight == 7).any() and int(second.num_batches_tracked) == 0
    flip(tmp_path / "state/model/model.safetensors")
    with pytest.raises(wl.CheckFailed):
        accelerator.load_state(tmp_path / "state")
    hooks.remove()
    accelerator.save_state(tmp_path / "after")
    assert (tmp_path / "after/model.safetensors").exists() and not (tmp_path / "after/model").exists()
    for kind in ("FSDP", "DEEPSPEED", "MEGATRON_LM"):
        with pytest.raises(wl.UserError, match=kind):
            register(SimpleNamespace(distributed_type=kind))  # type: ignore[arg-type]


# Lightning


def test_fabric_saves_and_loads(tmp_path: Path) -> None:
    from lightning_fabric import Fabric

    from weightloom.integrations.lightning import WeightloomCheckpointIO

    fabric = Fabric(accelerator="cpu", devices=1, plugins=[WeightloomCheckpointIO()])
    model: Any = torch.nn.Linear(3, 2)
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters()))
    fabric.backward(model(torch.ones(1, 3)).sum())
    optimizer.step()
    state = {"model": model, "optimizer": optimizer, "step": 3, "best": (float("inf"), [1])}
    for _ in range(2):
        fabric.save(tmp_path / "step.ckpt", state)
    expected = str(optimizer.state_dict())
    weight = model.weight.detach().clone()
    assert torch.equal(wl.open(tmp_path / "step.ckpt")["weight"].torch(), weight)
    models.clear(model.state_dict())
    optimizer.param_groups[0]["lr"] = 9.0
    loaded = {"model": model, "optimizer": optimizer, "step": 0, "best": None}
    assert fabric.load(tmp_path / "step.ckpt", loaded) == {}
    assert torch.equal(model.weight, weight)
    assert str(optimizer.state_dict()) == expected
    assert (loaded["step"], loaded["best"]) == (3, (float("inf"), [1]))
    # What Lightning saved without the plugin.
    Fabric(accelerator="cpu", devices=1).save(tmp_path / "old.ckpt", {"model": model, "step": 5})
    assert fabric.load(tmp_path / "old.ckpt", {"model": model}) == {"step": 5}


def test_lightning_trains_saves_and_resumes(tmp_path: Path) -> None:
    import pytorch_lightning as lightning
    from pytorch_lightning.callbacks import ModelCheckpoint

    from weightloom.integrations.lightning import WeightloomCheckpointIO

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.save_hyperparameters({"rate": 0.1, "path": Path("a")})
            torch.manual_seed(1)
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: Any, _: int) -> Any:
            return self.layer(batch).square().mean()

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.1)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

    def fit(folder: Path, epochs: int, resume: Path | None = None) -> tuple[Any, Model]:
        model = Model()
        keep = ModelCheckpoint(folder, save_top_k=1, monitor="step", mode="max", save_last=True)
        one = lightning.Trainer(
            accelerator="cpu", devices=1, max_epochs=epochs, logger=False, enable_progress_bar=False,
            enable_model_summary=False, callbacks=[keep], plugins=[WeightloomCheckpointIO()],
        )  # fmt: skip
        data = torch.utils.data.DataLoader(torch.arange(16.0).reshape(4, 4) / 16, batch_size=2)
        one.fit(model, data, ckpt_path=resume)
        return one, model

    _, whole = fit(tmp_path / "whole", 3)
    fit(tmp_path / "parts", 2)
    # The best one of the first epoch was removed.
    assert sorted(path.name for path in (tmp_path / "parts").iterdir()) == ["epoch=1-step=4.ckpt", "last.ckpt"]
    stored = wl.open(tmp_path / "parts/last.ckpt")
    assert sorted(name for name in stored if name.startswith("layer")) == ["layer.bias", "layer.weight"]
    assert stored.step == 4
    wl.verify(tmp_path / "parts/last.ckpt")
    one, resumed = fit(tmp_path / "parts", 3, tmp_path / "parts/last.ckpt")
    assert one.global_step == 6
    assert all(map(models.bits_equal, resumed.state_dict().values(), whole.state_dict().values()))
    loaded = WeightloomCheckpointIO().load_checkpoint(tmp_path / "parts/last.ckpt")
    assert loaded["hyper_parameters"] == {"rate": 0.1, "path": Path("a")}
    flip(tmp_path / "parts/last.ckpt/weightloom.json", 40)
    with pytest.raises(wl.WeightloomError):
        fit(tmp_path / "parts", 4, tmp_path / "parts/last.ckpt")


def test_lightning_loads_and_removes_what_a_killed_save_has_left(tmp_path: Path) -> None:
    from weightloom.integrations.lightning import WeightloomCheckpointIO

    plugin, last = WeightloomCheckpointIO(), tmp_path / "last.ckpt"
    for name in ("old", "new"):
        plugin.save_checkpoint({"state_dict": {"w": torch.ones(2)}, "name": name}, tmp_path / name)
    for name in ("old", "new"):
        (tmp_path / name).rename(tmp_path / f".last.ckpt.weightloom-{name}")
    assert plugin.load_checkpoint(last)["name"] == "new"
    plugin.remove_checkpoint(last)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(wl.UserError):
        plugin.load_checkpoint(last)
    with pytest.raises(TypeError, match="storage options"):
        plugin.save_checkpoint({}, last, storage_options={})


def lightning_on_rank_zero(rank: int, folder: Path, into: str) -> list[Any]:
    """Strategies of Lightning let rank 0 save, and all load."""
    import torch.distributed as dist

    from weightloom.integrations.lightning import WeightloomCheckpointIO

    plugin = WeightloomCheckpointIO()
    for step in range(2):
        if rank == 0:
            plugin.save_checkpoint({"state_dict": {"w": torch.full((2,), float(step))}, "step": step}, f"{into}/last.ckpt")
        dist.barrier()
    loaded = plugin.load_checkpoint(f"{into}/last.ckpt")
    return [loaded["state_dict"]["w"].tolist(), loaded["step"]]


def test_rank_zero_of_lightning_saves_alone(tmp_path: Path) -> None:
    assert ranks.run(2, "test_integrations.lightning_on_rank_zero", into=str(tmp_path)) == [[[1.0, 1.0], 1]] * 2


# torchtitan


class Container:
    """A part of torchtitan's state."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return dict(self.state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = dict(state)


class Adapter:
    """Names of Hugging Face."""

    hf_assets_path = None

    def to_hf(self, state: dict[str, Any]) -> dict[str, Any]:
        return {f"model.{name}": tensor for name, tensor in state.items()}

    def from_hf(self, state: dict[str, Any]) -> dict[str, Any]:
        return {name.removeprefix("model."): tensor for name, tensor in state.items()}


def train_with_torchtitan(rank: int, folder: Path, into: str) -> list[str]:
    """Saves and loads in all modes."""
    import torchtitan_stand_in
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torchtitan_stand_in.install()
    from weightloom.integrations.torchtitan import WeightloomCheckpointManager

    wrong: list[str] = []
    mesh = init_device_mesh("cpu", (2,))

    def manager(mode: str) -> Any:
        model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 2))
        fully_shard(model, mesh=mesh)
        models.fill(model.state_dict())
        moments = {f"state.{name}.exp_avg": tensor.detach().clone() for name, tensor in model.named_parameters()}
        config = WeightloomCheckpointManager.Config(folder=mode, async_mode=mode, keep_latest_k=2)
        return config.build(
            dataloader=Container({f"dp_rank_{rank}": bytes([rank, 255]), "world_size": 2}),
            model_parts=[model],
            optimizers=Container(moments | {"param_groups.lr": 0.1}),
            lr_schedulers=Container({"last_epoch": 7}),
            states={"train_state": Container({"step": torch.tensor(0)}), "absent": None},
            sd_adapter=Adapter(),
            base_folder=into,
        )

    for mode in ("disabled", "async", "async_with_pinned_mem"):
        one = manager(mode)
        for step in (1, 2, 3, 3):
            one.states["train_state"].state["step"] = torch.tensor(step)
            one.save(step)
        # A save that was killed is no checkpoint, whatever it holds.
        partial = Path(into) / mode / ".step-9.partial"
        partial.mkdir(parents=True, exist_ok=True)
        (partial / "model.safetensors.index.json").touch()
        if one.save_future is not None:
            one.save_future.result()
            wrong += [] if one.save_future.done() else [f"{mode}: not done"]
        other = manager(mode)
        models.clear(other.states["model"].state_dict())
        models.clear(other.states["optimizer"].state)
        other.states["optimizer"].state["param_groups.lr"] = 9.0
        other.states["dataloader"].state = {f"dp_rank_{rank}": b"", "world_size": 0}
        other.states["lr_scheduler"].state = {"last_epoch": 0}
        if other.load() != 3 or other.loaded:
            wrong.append(f"{mode}: {other.loaded}")
        wrong += models.differences(other.states["model"].state_dict())
        found = {name: other.states[name].state for name in ("dataloader", "lr_scheduler", "train_state")}
        expected = {
            "dataloader": {f"dp_rank_{rank}": bytes([rank, 255]), "world_size": 2},
            "lr_scheduler": {"last_epoch": 7},
            "train_state": {"step": torch.tensor(3)},
        }
        wrong += [] if str(found) == str(expected) else [f"{mode}: {found}"]
        theirs, ours = other.states["optimizer"].state, one.states["optimizer"].state
        wrong += [] if ours.pop("param_groups.lr") == theirs.pop("param_groups.lr") else [f"{mode}: the rate"]
        same = {name: torch.equal(tensor.full_tensor(), theirs[name].full_tensor()) for name, tensor in ours.items()}
        wrong += [f"{mode}: {name}" for name in same if not same[name]]
        purged = [] if rank else [Path(one.purge_queue.get()).name for _ in range(one.purge_queue.qsize())]
        wrong += [] if set(purged) <= {"step-1"} and (mode != "disabled" or rank or purged) else [f"{mode}: {purged}"]
    # The model alone, for transformers; and what is left to torchtitan.
    one = manager("disabled")
    one.folder = f"{into}/hf"
    one.save_last(5)
    names = sorted(wl.open(f"{into}/hf/step-5"))
    wrong += [] if names == ["model.0.bias", "model.0.weight", "model.1.bias", "model.1.weight"] else names
    models.clear(one.states["model"].state_dict())
    one.dcp_load(one.states["model"].state_dict(), checkpoint_id=f"{into}/hf/step-5", from_hf=True, from_quantized=False)
    wrong += models.differences(one.states["model"].state_dict())
    one.dcp_load({}, checkpoint_id=f"{into}/hf/step-5", from_hf=True, from_quantized=True)
    one.dcp_load({}, checkpoint_id=f"{into}/other", from_hf=False, from_quantized=False)
    left = [(f"{into}/hf/step-5", True, True), (f"{into}/other", False, False)]
    return wrong if one.loaded == left else [*wrong, str(one.loaded)]


def test_torchtitan_saves_and_loads(tmp_path: Path) -> None:
    assert ranks.run(2, "test_integrations.train_with_torchtitan", into=str(tmp_path)) == [[], []]
    for mode in ("disabled", "async", "async_with_pinned_mem"):
        stored = wl.open(tmp_path / mode / "step-3")
        assert stored.step == 3
        assert sorted(name for name in stored if "." in name and name[0].isdigit()) == [
            "0.bias", "0.weight", "1.bias", "1.weight",
        ]  # fmt: skip
        assert not list((tmp_path / mode / "step-3").glob("*.distcp"))
