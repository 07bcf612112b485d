"""Ranks of torch.distributed as a gang: conformance, and what happens to the others if one fails."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest
import ranks

if TYPE_CHECKING:
    from pathlib import Path


def conform(rank: int, folder: Path) -> dict[str, Any]:
    """The conformance suite, on all ranks and on groups of them."""
    import torch.distributed as dist

    from weightloom._group import ranks_of

    gang = ranks_of().gang
    found = {"cases": gang.check(), "rank": gang.rank, "size": gang.size}
    world = dist.get_world_size()
    members = [list(range(0, world, 2)), list(range(1, world, 2))] if world > 1 else [[0]]
    groups = [dist.new_group(of_group) for of_group in members if of_group]
    for of_group, group in zip(members, groups, strict=True):
        if rank in of_group:
            part = ranks_of(group).gang
            assert (part.rank, part.size) == (of_group.index(rank), len(of_group))
            assert part.gather(str(rank)) == [str(other) for other in of_group]
            assert ranks_of(group).gang is part
    # Messages longer than a frame, and as long as one.
    for length in (1, 440, 470, 480, 512, 100_000):
        assert gang.gather(str(rank) * length) == [str(other) * length for other in range(world)]
    dist.barrier()
    return found


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_the_gang_conforms(world: int) -> None:
    for rank, found in enumerate(ranks.run(world, "test_torch_gang.conform")):
        assert found["cases"] > 800
        assert (found["rank"], found["size"]) == (rank, world)


def fail(rank: int, folder: Path, failure: str) -> dict[str, Any]:
    """The last rank fails while the others wait for it."""
    import torch.distributed as dist

    import weightloom as wl
    from weightloom._group import ranks_of

    gang = ranks_of(timeout=3.0).gang
    gang.barrier()
    last = dist.get_world_size() - 1
    if rank == last:
        if failure == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if failure == "exits":
            return {}
        if failure == "stops":
            (folder / "stopped").touch()
            os.kill(os.getpid(), signal.SIGSTOP)
            return {}
    began = time.monotonic()
    try:
        if failure == "calls" and rank == last:
            gang.gather("something else")
        else:
            gang.barrier()
    except wl.WeightloomError as error:
        return {"error": type(error).__name__, "text": str(error), "seconds": time.monotonic() - began}
    return {}


@pytest.mark.parametrize("failure", ["killed", "exits", "calls"])
def test_the_others_learn_that_a_rank_is_gone(failure: str) -> None:
    outcomes = ranks.start(3, "test_torch_gang.fail", failure=failure).outcomes()
    waiting = outcomes if failure == "calls" else outcomes[:2]
    for outcome in waiting:
        assert outcome.code == 0, outcome.error
        assert outcome.result["error"] == "OperationalError"
        assert outcome.result["seconds"] < 30
    if failure == "calls":
        texts = {outcome.result["text"] for outcome in outcomes}
        assert len(texts) == 1
        assert "barrier" in texts.pop()
    else:
        assert outcomes[2].code == (-signal.SIGKILL if failure == "killed" else 0)


def test_a_rank_that_hangs_is_named() -> None:
    running = ranks.start(3, "test_torch_gang.fail", failure="stops")
    running.wait_for("stopped")
    stopped = running.processes.pop()
    outcomes = running.outcomes()
    stopped.send_signal(signal.SIGKILL)
    stopped.wait()
    for outcome in outcomes:
        assert outcome.code == 0, outcome.error
        assert outcome.result["error"] == "OperationalError"
        assert "rank 2" in outcome.result["text"]
        assert outcome.result["seconds"] < 60


def leave(rank: int, folder: Path) -> list[bool]:
    """Ranks end one after the other, as a program does; whether their threads still wait for messages."""
    from weightloom import _group

    _group.ranks_of().gang.gather("")
    time.sleep(0.2 * rank)
    _group._leave()
    return [transport._receiver.is_alive() for transport in _group._TRANSPORTS]


def test_no_thread_waits_for_messages_when_python_ends() -> None:
    # One that woke up while Python ends would abort the process.
    assert ranks.run(3, "test_torch_gang.leave") == [[False]] * 3
