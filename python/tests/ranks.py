"""Starts processes that are ranks of one gloo group, and collects what each returns."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, NamedTuple

TIMEOUT = 240.0
"""Seconds after which ranks are killed. Much longer than any run takes, as processors may be busy."""


class Outcome(NamedTuple):
    """How a rank ended."""

    code: int | None
    """Its exit code; `None` if it had to be killed."""
    result: Any
    """What its function returned."""
    error: str
    """What it wrote to stderr."""


class Ranks:
    """Ranks that are running."""

    def __init__(self, world: int, function: str, arguments: dict[str, Any], folder: Path) -> None:
        self.folder = folder
        environment = os.environ | {
            "GLOO_SOCKET_IFNAME": "lo",
            "PYTHONPATH": os.pathsep.join([*(path for path in sys.path if path), str(Path(__file__).parent)]),
        }
        command = [sys.executable, __file__, function, json.dumps(arguments), str(folder), str(world)]
        self.processes = []
        for rank in range(world):
            with (folder / f"error{rank}").open("wb") as error:
                self.processes.append(subprocess.Popen([*command, str(rank)], env=environment, stderr=error))

    def wait_for(self, name: str, timeout: float = TIMEOUT) -> None:
        """Waits until a rank has written a file of this name into the folder."""
        end = time.monotonic() + timeout
        while not (self.folder / name).exists():
            ended = [process.poll() for process in self.processes]
            if any(code not in (None, 0) for code in ended) or time.monotonic() > end:
                outcomes = self.outcomes(5)
                raise AssertionError(f"`{name}` was not written: {outcomes}")
            time.sleep(0.01)

    def outcomes(self, timeout: float = TIMEOUT) -> list[Outcome]:
        """Waits until all ranks have ended, and kills those that have not by then."""
        end = time.monotonic() + timeout
        return [self._outcome(rank, end) for rank in range(len(self.processes))]

    def _outcome(self, rank: int, end: float) -> Outcome:
        process = self.processes[rank]
        try:
            code: int | None = process.wait(max(end - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code = None
        found = self.folder / f"result{rank}"
        result = json.loads(found.read_text()) if found.exists() else None
        return Outcome(code, result, (self.folder / f"error{rank}").read_text(errors="replace"))


def start(world: int, function: str, **arguments: Any) -> Ranks:
    """Starts ranks that call `module.function(rank=…, folder=…, **arguments)`."""
    return Ranks(world, function, arguments, Path(tempfile.mkdtemp(prefix="ranks-")))


def run(world: int, function: str, **arguments: Any) -> list[Any]:
    """Runs ranks that call `module.function(rank=…, folder=…, **arguments)`, and returns what each returned."""
    outcomes = start(world, function, **arguments).outcomes()
    for rank, outcome in enumerate(outcomes):
        assert outcome.code == 0, f"rank {rank} ended with {outcome.code}:\n{outcome.error}"
    return [outcome.result for outcome in outcomes]


def main(function: str, arguments: str, folder: str, world: str, rank: str) -> None:
    """One rank."""
    import torch
    import torch.distributed as dist

    # Ranks share the processors.
    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(folder) / "store"), int(world))
    dist.init_process_group("gloo", store=store, rank=int(rank), world_size=int(world))
    module, name = function.rsplit(".", 1)
    call = getattr(importlib.import_module(module), name)
    result = call(rank=int(rank), folder=Path(folder), **json.loads(arguments))
    (Path(folder) / f"result{rank}").write_text(json.dumps(result))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Exception:
        traceback.print_exc()
        # Others may wait for this rank, and are not to learn of its end from a timeout.
        sys.stderr.flush()
        os._exit(1)
