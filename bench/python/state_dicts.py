"""Saves and loads of distributed state dicts: weightloom next to torch's DCP and torch_checkpointing, in one run.

    PYTHONPATH=python python bench/python/state_dicts.py [--layers 16] [--rounds 5] [--folder DIR]

Needs torch, weightloom, and torch_checkpointing if it is to be compared. Two gloo ranks hold the tensors of Llama 3.2 1B
in bf16 (2.5 GB), sharded by rows; they load onto a tensor-parallel mesh. The contenders take turns in every round, and
medians are compared. On a memory disk, a save costs what the software costs; on a disk, what reaches it: weightloom and
DCP sync their files before a save ends, torch_checkpointing does not.

What is measured, of the slowest rank:

- save: from the call until the checkpoint is complete.
- stall: from the call of an asynchronous save until tensors may be changed. Without other work meanwhile, so the copy is
  all of it.
- call: until that call returns. The copy of weightloom and torch_checkpointing goes on, beside the next forward and
  backward pass of a training; an optimizer's step waits for it.
- background: until the asynchronous save is complete.
- load: into tensors that exist, on another mesh.
- memory: the most memory beside the tensors, of a rank and its processes, in the second of two asynchronous saves, with
  all that is kept from the first; measured in separate processes, as looking costs time.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "peers"))

RANKS = 2
COLUMNS = ("save", "stall", "call", "background", "load", "memory")
PLANS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "embed_tokens")


class Weightloom:
    """This project."""

    def __init__(self) -> None:
        import weightloom

        weightloom.set_progress("off")
        self.wl = weightloom

    def save(self, state: dict[str, Any], path: str) -> None:
        self.wl.save(state, path)

    def save_async(self, state: dict[str, Any], path: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
        handle = self.wl.save_async(state, path, copy="background")
        return handle.wait_copied, handle.wait

    def load(self, state: dict[str, Any], path: str) -> None:
        self.wl.load(state, path)

    def close(self) -> None:
        pass


class Dcp:
    """`torch.distributed.checkpoint`, with the options that it has by default."""

    def __init__(self) -> None:
        import torch.distributed as dist
        import torch.distributed.checkpoint as dcp

        self.dcp = dcp
        # It refuses asynchronous saves through the group of a program with GPUs, and wants gloo.
        self.group = dist.new_group(backend="gloo")

    def save(self, state: dict[str, Any], path: str) -> None:
        self.dcp.save(state, storage_writer=self.dcp.FileSystemWriter(path))

    def save_async(self, state: dict[str, Any], path: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
        writer = self.dcp.FileSystemWriter(path)
        future = self.dcp.async_save(state, storage_writer=writer, process_group=self.group)
        return lambda: None, future.result

    def load(self, state: dict[str, Any], path: str) -> None:
        self.dcp.load(state, storage_reader=self.dcp.FileSystemReader(path))

    def close(self) -> None:
        pass


class TorchCheckpointing:
    """Meta's successor of DCP. Version 0.1.1 gathers its metadata on GPUs only: here, ranks without any gather objects."""

    def __init__(self) -> None:
        import torch.distributed as dist
        from torch_checkpointing import CheckpointManager, DefaultMetadataManager, ItemSpec
        from torch_checkpointing.config import AsyncCheckpointSaverConfig, SyncCheckpointSaverConfig
        from torch_checkpointing.default_resharder import DefaultResharder
        from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

        def gathered(_: Any, data: Any, process_group: Any = None) -> dict[int, Any]:
            found: list[Any] = [None] * RANKS
            dist.all_gather_object(found, data, group=process_group)
            return dict(enumerate(found))

        DefaultMetadataManager._all_gather_pickled_data = gathered
        items = {"model": ItemSpec(resharder=DefaultResharder())}
        # Its direct I/O fails on ext4.
        storage = LocalFileSystemStorageConfig(use_direct_io=False)
        config = CheckpointManager.Config
        self.now = config(items=items, save=SyncCheckpointSaverConfig(), storage_config=storage)
        self.later = config(items=items, save=AsyncCheckpointSaverConfig(), storage_config=storage).build()

    def save(self, state: dict[str, Any], path: str) -> None:
        # One that saves again leaves the layouts out, without which no other mesh can load.
        manager = self.now.build()
        manager.save(path, {"model": state})
        manager.close()

    def save_async(self, state: dict[str, Any], path: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
        future = self.later.save(path, {"model": state})

        def wait_for_copy() -> None:
            # What a training does around its optimizer's step.
            with self.later.lock():
                pass

        return wait_for_copy, future.result  # type: ignore[union-attr]

    def load(self, state: dict[str, Any], path: str) -> None:
        manager = self.now.build()
        manager.load(path, into={"model": state})
        manager.close()

    def close(self) -> None:
        self.later.close()


CONTENDERS: dict[str, Callable[[], Any]] = {
    "weightloom": Weightloom,
    "dcp": Dcp,
    "torch_checkpointing": TorchCheckpointing,
}


def memory_of(process: int) -> int:
    """Bytes of anonymous and shared memory of a process and its descendants; shared pages count once."""
    total, waiting = 0, [process]
    while waiting:
        one = waiting.pop()
        try:
            lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith(("Pss_Anon", "Pss_Shmem")))
            for task in Path(f"/proc/{one}/task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return total * 1024


class MemoryWatch:
    """The most memory beside what there was at the start."""

    def __enter__(self) -> MemoryWatch:
        self.before = memory_of(os.getpid())
        self.most = self.before
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._is_over.wait(0.02):
            self.most = max(self.most, memory_of(os.getpid()))

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()


class Rank:
    """One rank of the measurement."""

    def __init__(self, rank: int, folder: Path, layers: int) -> None:
        import torch
        import torch.distributed as dist
        from llama_shapes import shapes
        from torch.distributed.tensor import DTensor, Replicate, Shard, init_device_mesh

        torch.set_num_threads(1)
        dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), RANKS), rank=rank, world_size=RANKS)
        self.dist, self.torch, self.folder, self.rank = dist, torch, folder, rank
        mesh = init_device_mesh("cpu", (RANKS,))

        def placed(name: str) -> Any:
            if any(part in name for part in PLANS):
                return Shard(0)
            return Shard(1) if "o_proj" in name or "down_proj" in name else Replicate()

        torch.manual_seed(rank)
        self.rows: dict[str, Any] = {}
        self.parallel: dict[str, Any] = {}
        for name, shape in shapes(layers):
            local = torch.empty(shape[0] // RANKS, *shape[1:], dtype=torch.bfloat16).uniform_()
            self.rows[name] = DTensor.from_local(local, mesh, [Shard(0)])
            placement = placed(name)
            local_shape = list(shape)
            if isinstance(placement, Shard):
                local_shape[placement.dim] //= RANKS
            self.parallel[name] = DTensor.from_local(torch.zeros(local_shape, dtype=torch.bfloat16), mesh, [placement])
        self.bytes = sum(tensor.numel() * 2 for tensor in self.rows.values())

    def slowest(self, seconds: float) -> float:
        value = self.torch.tensor([seconds], dtype=self.torch.float64)
        self.dist.all_reduce(value, self.dist.ReduceOp.MAX)
        return float(value)

    def timed(self, work: Callable[[], Any]) -> float:
        self.dist.barrier()
        begin = time.perf_counter()
        work()
        return self.slowest(time.perf_counter() - begin)

    def fresh(self, name: str) -> str:
        """A path with nothing there."""
        path = self.folder / name
        if self.rank == 0:
            shutil.rmtree(path, ignore_errors=True)
        self.dist.barrier()
        return str(path)

    def in_background(self, contender: Any, path: str) -> dict[str, float]:
        self.dist.barrier()
        begin = time.perf_counter()
        wait_for_copy, wait = contender.save_async(self.rows, path)
        call = time.perf_counter() - begin
        wait_for_copy()
        stall = time.perf_counter() - begin
        wait()
        background = time.perf_counter() - begin
        return {"call": self.slowest(call), "stall": self.slowest(stall), "background": self.slowest(background)}

    def check(self, name: str) -> None:
        """Compares what was loaded with what was saved, for a tensor with another layout and one with the same."""
        for one in ("model.layers.0.self_attn.o_proj.weight", "model.embed_tokens.weight"):
            saved, loaded = self.rows[one].full_tensor(), self.parallel[one].full_tensor()
            if not self.torch.equal(saved, loaded):
                raise RuntimeError(f"{name} loaded other values of {one}")

    def turn(self, name: str, contender: Any) -> dict[str, float]:
        """What one contender takes for everything."""
        found: dict[str, float] = {}
        path = self.fresh(name)
        found["save"] = self.timed(lambda: contender.save(self.rows, path))
        for tensor in self.parallel.values():
            tensor.to_local().zero_()
        found["load"] = self.timed(lambda: contender.load(self.parallel, path))
        self.check(name)
        found |= self.in_background(contender, self.fresh(name))
        shutil.rmtree(path, ignore_errors=True) if self.rank == 0 else None
        return found

    def memory(self, name: str) -> float:
        """The most memory of a contender, in copies of a rank's tensors."""
        with MemoryWatch() as watch:
            contender = CONTENDERS[name]()
            for _ in range(2):
                _, wait = contender.save_async(self.rows, self.fresh(name))
                wait()
        self.fresh(name)
        contender.close()
        return self.slowest((watch.most - watch.before) / self.bytes * RANKS)


def memory_main(rank: int, folder: Path, layers: int, name: str) -> None:
    one = Rank(rank, folder, layers)
    memory = one.memory(name)
    if rank == 0:
        (folder / "memory.json").write_text(json.dumps(memory))
    one.dist.barrier()
    one.dist.destroy_process_group()


def rank_main(rank: int, folder: Path, layers: int, rounds: int, names: list[str]) -> None:
    one = Rank(rank, folder, layers)
    contenders = {name: CONTENDERS[name]() for name in names}
    found: dict[str, dict[str, list[float]]] = {name: {column: [] for column in COLUMNS} for name in names}
    for number in range(rounds + 1):
        # Each goes first in turn; the first round is not counted.
        order = names[number % len(names) :] + names[: number % len(names)]
        for name in order:
            for column, value in one.turn(name, contenders[name]).items():
                if number:
                    found[name][column].append(value)
    if rank == 0:
        (folder / "found.json").write_text(json.dumps({"bytes": one.bytes, "found": found}))
    one.dist.barrier()
    for contender in contenders.values():
        contender.close()
    one.dist.destroy_process_group()


def available() -> list[str]:
    from importlib.util import find_spec

    return [name for name in CONTENDERS if name != "torch_checkpointing" or find_spec(name) is not None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=None, help="where to save; a memory disk by default")
    parser.add_argument("--rank", type=int, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--memory", default=None, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print results as JSON")
    options = parser.parse_args()
    names = available()
    if options.rank is not None and options.memory is not None:
        memory_main(options.rank, options.folder, options.layers, options.memory)
        return
    if options.rank is not None:
        rank_main(options.rank, options.folder, options.layers, options.rounds, names)
        return
    memory_disk = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="state-dicts-", dir=options.folder or memory_disk) as folder:
        sizes = ["--layers", str(options.layers), "--rounds", str(options.rounds)]
        run_ranks(folder, sizes)
        results = json.loads((Path(folder) / "found.json").read_text())
        for name in names:
            (Path(folder) / "store").unlink()
            run_ranks(folder, [*sizes, "--memory", name])
            results["found"][name]["memory"] = [json.loads((Path(folder) / "memory.json").read_text())]
    print(json.dumps(results) if options.json else text(results, names))


def run_ranks(folder: str, arguments: list[str]) -> None:
    command = [sys.executable, __file__, *arguments, "--folder", folder]
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    ranks = [subprocess.Popen([*command, "--rank", str(rank)], env=environment) for rank in range(RANKS)]
    codes = [rank.wait() for rank in ranks]
    if any(codes):
        sys.exit(f"ranks ended with {codes}")


def text(results: dict[str, Any], names: list[str]) -> str:
    medians = {
        name: {column: statistics.median(values) for column, values in results["found"][name].items()} for name in names
    }
    lines = [f"{results['bytes'] / 1e9:.2f} GB on {RANKS} ranks; seconds, and memory in copies of a rank's tensors"]
    lines.append(f"{'':20}" + "".join(f"{column:>12}" for column in COLUMNS))
    for name in names:
        lines.append(f"{name:20}" + "".join(f"{medians[name][column]:12.3f}" for column in COLUMNS))
    for name in names[1:]:
        ratios = (medians[name][column] / max(medians[names[0]][column], 1e-9) for column in COLUMNS)
        lines.append(f"{'÷ weightloom, ' + name:20}"[:20] + "".join(f"{ratio:11.2f}×" for ratio in ratios))
    own = medians[names[0]]
    lines.append(f"stall of weightloom: {own['stall'] / own['save']:.1%} of its save")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
