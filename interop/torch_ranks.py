"""One torch rank: `torch_ranks.py save FOLDER` saves states, `torch_ranks.py load FOLDER` loads our checkpoints of them.

The contents are beside each checkpoint: whole tensors as safetensors, other values as JSON.
"""

import datetime
import json
import os
import pathlib
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from compare import same, write

RANK = int(os.environ["RANK"])


def network(seed, kind):
    """A small distributed model, with an optimizer that has taken a step."""
    torch.manual_seed(seed)
    # Sizes that two ranks do not divide evenly.
    model = torch.nn.Sequential(torch.nn.Linear(11, 7), torch.nn.LayerNorm(7), torch.nn.Linear(7, 5))
    mesh = init_device_mesh("cpu", (2,))
    if kind == "fsdp":
        fully_shard(model, mesh=mesh)
    else:
        parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
    for parameter in model.parameters():
        parameter.grad = parameter.detach().clone()
    optimizer.step()
    return model, optimizer


def trained(seed, kind):
    model, optimizer = network(seed, kind)
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optim": moments, "step": 7, "seed": 2**40, "rate": 0.125, "note": "naïve",
            "progress": {"epoch": 3, "files": ["a", "b"], "done": False, "best": None}}


def mixed():
    """Tensors of many dtypes in many layouts."""
    torch.manual_seed(3)
    line, grid = init_device_mesh("cpu", (2,)), init_device_mesh("cpu", (1, 2))
    on = lambda mesh, tensor, *placements: distribute_tensor(tensor, mesh, placements)
    return {
        "rows": on(line, torch.randn(7, 3), Shard(0)), "columns": on(line, torch.randn(3, 5).bfloat16(), Shard(1)),
        "one_row": on(line, torch.randn(1, 3).half(), Shard(0)), "depth": on(line, torch.randn(2, 3, 5).double(), Shard(2)),
        "copies": on(line, torch.randn(3, 2), Replicate()), "grid": on(grid, torch.randn(5, 6), Shard(0), Shard(1)),
        "twice": on(grid, torch.randn(6, 5), Shard(0), Shard(0)), "plain": torch.arange(4, dtype=torch.uint8),
        "turned": torch.randn(3, 4).t(), "empty": torch.empty(0, 2), "scalar": torch.tensor(2.5),
        "counts": on(line, torch.arange(9), Shard(0)), "flags": torch.arange(5) > 2,
        "small": torch.arange(6).to(torch.float8_e4m3fn), "layers": [{"bias": torch.randn(3)}, torch.randn(2), 5],
    }


STATES = {"fsdp": lambda: trained(1, "fsdp"), "tp": lambda: trained(2, "tp"), "mixed": mixed}


def whole(state):
    """The full tensors and the other values of a state, under torch's names."""
    tensors, values = {}, {}
    for name, value in flatten_state_dict(state)[0].items():
        if isinstance(value, DTensor):
            tensors[name] = value.full_tensor()
        elif isinstance(value, torch.Tensor):
            tensors[name] = value
        else:
            values[name] = value
    return tensors, values


def save(place):
    for name, make in STATES.items():
        state = make()
        dcp.save(state, checkpoint_id=place / name)
        tensors, values = whole(state)
        if RANK == 0:
            write(place / f"{name}.safetensors", tensors)
            (place / f"{name}.json").write_text(json.dumps(values))


def load(place):
    counts = {}
    for name in STATES:
        expected, values = load_file(place / f"{name}.safetensors"), json.loads((place / f"{name}.json").read_text())
        state = blank(expected, values)
        dcp.load(state, checkpoint_id=place / f"{name}.ours")
        found, found_values = whole(state)
        counts[name] = same(found, expected)
        assert found_values == values, f"{found_values} is not {values}"
        dcp.save(state, checkpoint_id=place / f"{name}.again")
        if name != "mixed":
            resume(place / f"{name}.ours", name, expected)
    if RANK == 0:
        for name, count in counts.items():
            print(name, count)


def blank(expected, values):
    """Zeros in other layouts than the saved ones."""
    mesh = init_device_mesh("cpu", (2,))
    state = dict.fromkeys(values)
    for number, (name, tensor) in enumerate(expected.items()):
        zeros = torch.zeros_like(tensor)
        dim = number % (tensor.ndim + 1)
        state[name] = distribute_tensor(zeros, mesh, [Shard(dim)]) if dim < tensor.ndim else zeros
    return state


def resume(folder, kind, expected):
    """Resumes training from our checkpoint, as torch recommends."""
    model, optimizer = network(99, kind)
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optim": moments}
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
    weights, moments = get_state_dict(model, optimizer)
    same(whole({"model": weights, "optim": moments})[0], expected)


if __name__ == "__main__":
    action, place = sys.argv[1], pathlib.Path(sys.argv[2])
    store = dist.FileStore(str(place / f"{action}.store"), int(os.environ["WORLD_SIZE"]))
    dist.init_process_group("gloo", store=store, rank=RANK, world_size=int(os.environ["WORLD_SIZE"]),
                            timeout=datetime.timedelta(seconds=60))
    {"save": save, "load": load}[action](place)
    dist.destroy_process_group()
    sys.stdout.flush()
    # Skip the interpreter's shutdown, in which torch's threads sometimes abort.
    os._exit(0)
