"""Torch DCP peer of benches/checkpoint.rs on several gloo ranks: reads the name of
a case per line, prints the seconds of the slowest rank, or `-` for an unknown
case. Arguments: a folder and the number of layers."""

import os
import shutil
import sys
import tempfile
import time
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from llama_shapes import shapes
from torch.distributed.tensor import DTensor, Replicate, Shard

warnings.filterwarnings("ignore")


def placement(name, mode):
    if mode == "rows":
        return Shard(0)
    if any(word in name for word in ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "embed_tokens")):
        return Shard(0)
    return Shard(1) if "o_proj" in name or "down_proj" in name else Replicate()


def rank_main(rank, world, port, folder, layers, work, mode, answer):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.set_num_threads(1)
    mesh = dist.device_mesh.init_device_mesh("cpu", (world,))
    state = {}
    for name, shape in shapes(layers):
        place = placement(name, mode)
        local = list(shape)
        if isinstance(place, Shard):
            local[place.dim] //= world
        local = torch.empty(local, dtype=torch.bfloat16).fill_(rank + 1)
        state[name] = DTensor.from_local(local, mesh, [place])
    dist.barrier()
    begin = time.perf_counter()
    if work == "save":
        dcp.save(state, storage_writer=dcp.FileSystemWriter(folder, overwrite=True))
    else:
        dcp.load(state, storage_reader=dcp.FileSystemReader(folder))
    elapsed = torch.tensor([time.perf_counter() - begin])
    dist.all_reduce(elapsed, dist.ReduceOp.MAX)
    if rank == 0:
        with open(answer, "w") as file:
            file.write(str(elapsed.item()))
    dist.destroy_process_group()


if __name__ == "__main__":
    folder, layers = sys.argv[1], int(sys.argv[2])
    cases = {"save": (2, "rows"), "load rows": (4, "rows"), "load tensor parallel": (4, "mixed")}
    port = 29600 + os.getpid() % 300
    for line in sys.stdin:
        case = line.strip()
        if case not in cases:
            print("-", flush=True)
            continue
        world, mode = cases[case]
        if case == "save":
            shutil.rmtree(folder, ignore_errors=True)
        port += 1
        with tempfile.NamedTemporaryFile() as answer:
            args = (world, port, folder, layers, case.split()[0], mode, answer.name)
            mp.spawn(rank_main, args=args, nprocs=world)
            print(open(answer.name).read(), flush=True)
