"""`torch.distributed.checkpoint` with our storage: what it saves is what `wl.save` saves, and it loads anything."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import models
import pytest
import ranks
import torch
import torch.distributed.checkpoint as dcp
from test_save_load import state_of, values
from torch.distributed.checkpoint.api import CheckpointException

import weightloom as wl
from weightloom.integrations.dcp import StorageReader, StorageWriter

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def save(state: dict[str, Any], writer: StorageWriter, **options: Any) -> wl.SaveReport:
    """Saves with torch."""
    dcp.save(state, storage_writer=writer, **options)
    assert writer.report is not None
    return writer.report


def wrong_in(state: dict[str, Any], label: str) -> list[str]:
    """What differs from the expected values."""
    wrong = models.differences(state["model"]) + models.differences(state.get("optimizer", {}), "optimizer")
    found = {name: state[name] for name in values(0)}
    # torch does not store empty dicts, and leaves the one that is there.
    return [f"{label}: {name}" for name in wrong] + ([] if repr(found) == repr(values(3)) else [f"{label}: {found}"])


def emptied(kind: str) -> dict[str, Any]:
    state = state_of(kind) | values(0)
    models.clear(state)
    return state


def save_and_load(rank: int, folder: Path, into: str) -> list[str]:
    """Saves on two ranks with `wl.save` and with torch, and loads each with the other, also on another mesh."""
    wrong = []
    for kind, other in (("fsdp", "tp"), ("tp", "fsdp")):
        state = state_of(kind) | values(3)
        models.fill(state["model"])
        models.fill(state["optimizer"], "optimizer")
        assets = models.config()
        ours = wl.save(state, f"{into}/{kind}", step=3, assets=assets)
        theirs = save(state, StorageWriter(f"{into}/{kind}-dcp", step=3, assets=assets))
        if (theirs.fingerprint, theirs.model_fingerprint) != (ours.fingerprint, ours.model_fingerprint):
            wrong.append(f"{kind}: {theirs} is not {ours}")
        for target in (kind, other):
            loaded = emptied(target)
            dcp.load(loaded, storage_reader=StorageReader(f"{into}/{kind}-dcp"))
            wrong += wrong_in(loaded, f"torch, {kind} to {target}")
        loaded = emptied(other)
        wl.load(loaded, f"{into}/{kind}-dcp")
        wrong += wrong_in(loaded, f"wl, {kind} to {other}")
    # What torch has written itself, and a folder of Hugging Face.
    dcp.save(state, checkpoint_id=f"{into}/torch")
    loaded = emptied("fsdp")
    dcp.load(loaded, storage_reader=StorageReader(f"{into}/torch"))
    wrong += wrong_in(loaded, "torch's own")
    wl.save(state, f"{into}/hf", format="hf", assets=assets)
    for state in ({"model": state_of("fsdp")["model"]}, state_of("tp")["model"]):
        models.clear(state)
        dcp.load(state, storage_reader=StorageReader(f"{into}/hf"))
        wrong += models.differences(state.get("model", state))
    return wrong


def test_torch_saves_and_loads_on_two_ranks(tmp_path: Path) -> None:
    assert ranks.run(2, "test_integrations_dcp.save_and_load", into=str(tmp_path)) == [[], []]
    ours, theirs = wl.open(tmp_path / "fsdp"), wl.open(tmp_path / "fsdp-dcp")
    assert set(ours.entries) - set(theirs.entries) == {"deep.empty"}
    assert all(ours.value(name) == theirs.value(name) for name in theirs.entries)
    assert theirs.step == 3
    assert wl.verify(tmp_path / "fsdp-dcp")
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "fsdp" / name).read_bytes() == (tmp_path / "fsdp-dcp" / name).read_bytes()
    assert not list(tmp_path.glob("*-dcp/*.distcp"))


def fail_together(rank: int, folder: Path, into: str) -> list[str]:
    """What goes wrong on one rank, or with one group, ends on all ranks at once."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    def texts(error: CheckpointException) -> list[str]:
        found = [str(failure[0]) for failure in error.failures.values()]
        return [*found, *(type(failure[0]).__name__ for failure in error.failures.values())]

    wrong: list[str] = []

    def check(name: str, expected: str, call: Any) -> None:
        try:
            call()
        except CheckpointException as error:
            if len(error.failures) != 2 or not any(expected in text for text in texts(error)):
                wrong.append(f"{name}: {texts(error)}")
        else:
            wrong.append(f"{name}: no error")
        dist.barrier()

    # Each rank has entries of its own, as the stages of a pipeline have.
    state: dict[str, Any] = {"model": {f"stage{rank}.w": torch.ones(2)}, f"of{rank}": rank}
    broken = state | ({"function": print} if rank else {})
    check("not JSON", "neither a tensor nor JSON", lambda: save(broken, StorageWriter(f"{into}/a")))
    save(state, StorageWriter(f"{into}/b"))
    check("exists", "exists", lambda: save(state, StorageWriter(f"{into}/b")))
    half = dist.new_group([0, 1])
    alone = dist.new_group([rank], use_local_synchronization=True)
    check("group", "process group of 1", lambda: save(state, StorageWriter(f"{into}/c", process_group=alone)))
    save(state, StorageWriter(f"{into}/d", process_group=half), process_group=half)
    # One process of several.
    mine = {"model": {"w": torch.full((2,), float(rank))}}
    save(mine, StorageWriter(f"{into}/alone{rank}"), no_dist=True)
    mine["model"]["w"].fill_(7)
    dcp.load(mine, storage_reader=StorageReader(f"{into}/alone{rank}"), no_dist=True)
    wrong += [] if mine["model"]["w"].tolist() == [rank, rank] else [f"alone: {mine}"]
    try:
        save(state, StorageWriter(f"{into}/e"), use_collectives=False)
    except wl.UserError as error:
        wrong += [] if "collectives" in str(error) else [str(error)]
    # Loads of one group, without saying so to the reader.
    loaded = {"model": {f"stage{rank}.w": torch.zeros(2)}, f"of{rank}": 9}
    dcp.load(loaded, storage_reader=StorageReader(f"{into}/d"), process_group=half)
    wrong += [] if loaded["model"][f"stage{rank}.w"].tolist() == [1, 1] and loaded[f"of{rank}"] == rank else [str(loaded)]
    # A checksum covers both halves of a tensor, so that no rank could compare it alone.
    halves = {"w": distribute_tensor(torch.arange(4.0), init_device_mesh("cpu", (2,)), [Shard(0)])}
    save(halves, StorageWriter(f"{into}/halves"))
    dcp.load(halves, storage_reader=StorageReader(f"{into}/halves"))
    dist.barrier()
    if rank == 0:
        file = Path(into) / "halves" / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-1] + b"\x41")
    dist.barrier()
    check("damage", "CheckFailed", lambda: dcp.load(halves, storage_reader=StorageReader(f"{into}/halves")))
    return wrong


def test_a_failure_of_one_rank_is_one_of_all(tmp_path: Path) -> None:
    assert ranks.run(2, "test_integrations_dcp.fail_together", into=str(tmp_path)) == [[], []]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alone0", "alone1", "b", "d", "halves"]
    stages = {"stage0.w": torch.ones(2), "stage1.w": torch.ones(2)}
    assert str(wl.open(tmp_path / "d").state_dict()) == str({"model": stages, "of0": 0, "of1": 1})


def save_in_background(rank: int, folder: Path, into: str) -> list[str]:
    """Saves in a thread while the tensors change."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2,))
    weight = distribute_tensor(torch.arange(10.0).reshape(5, 2), mesh, [Shard(0)])
    writer = StorageWriter("nowhere")
    future: Any = dcp.async_save({"model": {"w": weight}}, checkpoint_id=f"{into}/thread", storage_writer=writer)
    weight.zero_()
    future.result()
    dcp.load({"model": {"w": weight}}, checkpoint_id=f"{into}/thread", storage_reader=StorageReader("nowhere"))
    return [str(writer.path), *map(str, weight.full_tensor().flatten().tolist())]


def test_torch_saves_in_the_background(tmp_path: Path) -> None:
    found = ranks.run(2, "test_integrations_dcp.save_in_background", into=str(tmp_path))
    assert found == [[str(tmp_path / "thread"), *map(str, map(float, range(10)))]] * 2


class Application:
    """An object that torch asks for its state, as its tutorials write it."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = torch.nn.Linear(3, 2)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.model(torch.ones(1, 3)).sum().backward()
        self.optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        from torch.distributed.checkpoint.state_dict import set_state_dict

        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def test_objects_with_a_state(tmp_path: Path) -> None:
    one, other = Application(1), Application(2)
    other.optimizer.param_groups[0]["lr"] = 9.0
    save({"app": one}, StorageWriter(tmp_path / "saved"))
    dcp.load({"app": other}, storage_reader=StorageReader(tmp_path / "saved"))
    assert all(map(torch.equal, one.model.state_dict().values(), other.model.state_dict().values()))
    assert str(one.optimizer.state_dict()) == str(other.optimizer.state_dict())
    assert other.optimizer.param_groups[0]["betas"] == (0.9, 0.999)


def test_dtypes_and_memory_of_any_order(tmp_path: Path) -> None:
    base = torch.arange(-6.0, 6.0).reshape(3, 4)
    kinds = (torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool, torch.float8_e4m3fn)
    state: dict[str, Any] = {str(kind): base.to(kind) for kind in kinds}
    state |= {
        "transposed": base.t(),
        "scalar": torch.tensor(5),
        "empty": torch.empty(0, 3),
        "expanded": torch.ones(1).expand(4),
        "parameter": torch.nn.Parameter(torch.ones(2)),
    }
    report = save(state, StorageWriter(tmp_path / "saved"))
    assert report.fingerprint == wl.save(state, tmp_path / "ours").fingerprint == wl.open(tmp_path / "saved").fingerprint()
    wanted: dict[str, Any] = {name: torch.full_like(value, 1) for name, value in state.items() if name != "expanded"}
    wanted["transposed"] = torch.zeros(3, 4).t()
    wanted["torch.bfloat16"] = torch.zeros(3, 4)
    wanted["torch.float64"] = torch.zeros(3, 8, dtype=torch.bfloat16)[:, ::2]
    wanted["parameter"] = torch.nn.Parameter(torch.zeros(2))
    version = wanted["parameter"]._version
    dcp.load(wanted, storage_reader=StorageReader(tmp_path / "saved"))
    assert wanted["parameter"]._version > version
    for name, value in wanted.items():
        assert torch.equal(value, state[name].to(value.dtype)), name


def tensor_of_boxes(whole: torch.Tensor, boxes: list[tuple[tuple[int, int], tuple[int, int]]]) -> torch.Tensor:
    """A local tensor with boxes of a whole one below each other, which torch saves and loads as such."""
    widest = max(size[1] for _, size in boxes)
    local: Any = torch.full((sum(size[0] for _, size in boxes), widest), 7, dtype=whole.dtype)
    rows, places = 0, []
    for (row, column), (height, width) in boxes:
        local[rows : rows + height, :width] = whole[row : row + height, column : column + width]
        places.append((rows, 0))
        rows += height
    local.global_shape = tuple(whole.shape)
    local.global_offsets = tuple(start for start, _ in boxes)
    local.local_offsets = tuple(places)
    local.local_sizes = tuple(size for _, size in boxes)
    return local  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "boxes",
    [
        [((0, 0), (2, 7)), ((2, 0), (3, 7))],
        [((0, 0), (5, 3)), ((0, 3), (5, 4))],
        [((0, 0), (2, 4)), ((0, 4), (3, 3)), ((2, 0), (3, 4)), ((3, 4), (2, 3))],
    ],
    ids=["rows", "columns", "blocks"],
)
def test_several_boxes_of_a_tensor_on_one_rank(boxes: Any, tmp_path: Path) -> None:
    whole = torch.arange(35, dtype=torch.int32).reshape(5, 7)
    save({"w": tensor_of_boxes(whole, boxes)}, StorageWriter(tmp_path / "saved"))
    assert torch.equal(wl.open(tmp_path / "saved")["w"].torch(), whole)
    state = {"w": tensor_of_boxes(torch.zeros_like(whole), boxes)}
    dcp.load(state, storage_reader=StorageReader(tmp_path / "saved"))
    assert torch.equal(state["w"], tensor_of_boxes(whole, boxes))


def test_a_model_is_found_nested_or_not(tmp_path: Path) -> None:
    weight = torch.arange(4.0)
    save({"model": {"a.w": weight, "b": [weight + 1, {"c": weight + 2}]}, "epoch": 3}, StorageWriter(tmp_path / "nested"))
    save({"a.w": weight}, StorageWriter(tmp_path / "flat"))
    torch.save({"model": {"a.w": weight}}, tmp_path / "nested.pt")
    for name in ("nested", "flat", "nested.pt"):
        for state in ({"a.w": torch.zeros(4)}, {"model": {"a.w": torch.zeros(4)}}, {"model.a.w": torch.zeros(4)}):
            dcp.load(state, storage_reader=StorageReader(tmp_path / name))
            [[_, found]] = models.tensors_of(state).items()
            assert torch.equal(found, weight), (name, state)
    # One stored tensor for two entries, of other dtypes.
    both: dict[str, Any] = {"model": {"a.w": torch.zeros(4)}, "a.w": torch.zeros(4, dtype=torch.int8)}
    dcp.load(both, storage_reader=StorageReader(tmp_path / "nested"))
    assert both["model"]["a.w"].tolist() == both["a.w"].tolist() == [0, 1, 2, 3]
    with pytest.raises(CheckpointException, match=r"Missing key in checkpoint state_dict: model\.z"):
        dcp.load({"model": {"z": weight}}, storage_reader=StorageReader(tmp_path / "nested"))
    with pytest.raises(CheckpointException, match="Size mismatch"):
        dcp.load({"a.w": torch.zeros(5)}, storage_reader=StorageReader(tmp_path / "nested"))
    with pytest.raises(CheckpointException, match="nowhere"):
        dcp.load({"a.w": torch.zeros(5)}, storage_reader=StorageReader(tmp_path / "nowhere"))


def test_torch_rebuilds_the_state_dict_from_what_is_stored(tmp_path: Path) -> None:
    from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

    state = {"model": {"w": torch.arange(4.0)}, "optimizer": {"state": {"0": {"step": torch.tensor(3.0)}}}} | values(3)
    save(state, StorageWriter(tmp_path / "saved"))
    found: dict[str, Any] = {}
    planner = _EmptyStateDictLoadPlanner()
    _load_state_dict(found, StorageReader(tmp_path / "saved"), no_dist=True, planner=planner)
    # torch does not store empty dicts, and JSON has no tuples.
    del state["deep"]["empty"]
    state["betas"] = [0.9, 0.95]
    assert {name: str(value) for name, value in found.items()} == {name: str(value) for name, value in state.items()}


def test_what_is_not_json_is_an_error(tmp_path: Path) -> None:
    class Plain(dcp.DefaultSavePlanner):
        """A planner that hands out bytes only."""

        lookup_object = None  # type: ignore[assignment]

        def resolve_data(self, write_item: Any) -> Any:
            return io.BytesIO(b"pickled") if write_item.tensor_data is None else torch.ones(2)

    for state, planner, text in (
        ({"f": print}, None, "`f`: a builtin_function_or_method is neither a tensor nor JSON"),
        ({"deep": {"s": {1, 2}}}, None, "`deep.s`: a set is neither"),
        ({"pair": (torch.ones(2), 1)}, None, "`pair`: a tuple is neither"),
        ({"n": 1}, Plain(), "`n`: Plain pickles it"),
        ({"w": torch.ones(2, dtype=torch.complex64)}, None, "`w`: its dtype is torch.complex64"),
        ({"w": torch.ones(2).to_sparse()}, None, "`w`: it is sparse"),
        ({"model": {"w": torch.ones(2)}, "w": torch.ones(2)}, None, "both become `w`"),
    ):
        with pytest.raises(CheckpointException) as raised:
            save(state, StorageWriter(tmp_path / "saved"), planner=planner)
        error = raised.value.failures[0][0]
        assert isinstance(error, wl.UserError)
        assert text in str(error)
        assert error.hint
    assert list(tmp_path.iterdir()) == []
    # Tensors need no such planner.
    save({"w": torch.zeros(2)}, StorageWriter(tmp_path / "saved"), planner=Plain())
    assert wl.open(tmp_path / "saved")["w"].torch().tolist() == [1, 1]


def test_nothing_is_unpickled_but_what_was_just_pickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save({"n": [1, {"a": None}], "x": float("inf"), "t": "text"}, StorageWriter(tmp_path / "saved"))
    seen: list[Any] = []
    load = torch.load
    monkeypatch.setattr(torch, "load", lambda file, **_: seen.append(load(file, weights_only=True)) or seen[-1])
    state: dict[str, Any] = {"n": [0, {"a": 0}], "x": 0.0, "t": ""}
    dcp.load(state, storage_reader=StorageReader(tmp_path / "saved"))
    assert state == {"n": [1, {"a": None}], "x": float("inf"), "t": "text"}
    assert len(seen) == len(wl.open(tmp_path / "saved").entries)


def test_plans_that_torch_remembers(tmp_path: Path) -> None:
    planner = dcp.DefaultSavePlanner(enable_plan_caching=True)
    for number in range(3):
        writer = StorageWriter(tmp_path / f"step_{number}")
        report = save({"model": {"w": torch.full((2,), float(number))}, "n": number}, writer, planner=planner)
        assert report.fingerprint == wl.open(tmp_path / f"step_{number}").fingerprint()
        assert wl.open(tmp_path / f"step_{number}").value("n") == number


def test_a_writer_is_sent_to_another_process(tmp_path: Path) -> None:
    import pickle

    writer = pickle.loads(pickle.dumps(StorageWriter(tmp_path / "saved", step=5)))
    save({"w": torch.ones(2)}, writer)
    assert wl.open(tmp_path / "saved").step == 5
    assert StorageWriter.validate_checkpoint_id(tmp_path) and StorageReader.validate_checkpoint_id("s3://bucket/x")
    assert not StorageReader.validate_checkpoint_id("")
    assert os.fspath(writer.path) == str(tmp_path / "saved")
