"""Long-lived programs: nothing leaks, threads may do anything at once, and forks work or are refused with a reason.

A thousand opens are in `test_open.py`, a thousand saves and loads in `test_save_load.py`.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import weightloom as wl
from safetensors.torch import save_file
from test_train import config

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, and forks")


class Amounts(NamedTuple):
    """What a process holds."""

    descriptors: int
    threads: int
    resident_kib: int


def amounts() -> Amounts:
    gc.collect()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    descriptors = len(os.listdir("/proc/self/fd"))
    return Amounts(descriptors, int(status["Threads"]), int(status["VmRSS"].split()[0]))


def assert_nothing_grows(work: Callable[[int], object], times: int, most_kib: int) -> None:
    """Calls `work` with increasing numbers, first to fill caches, and then to compare."""
    for number in range(times // 4):
        work(number)
    before = amounts()
    for number in range(times // 4, times // 4 + times):
        work(number)
    after = amounts()
    assert after.descriptors <= before.descriptors
    assert after.threads <= before.threads
    assert after.resident_kib < before.resident_kib + most_kib, f"{after.resident_kib - before.resident_kib} KiB more"


def test_commands_leak_nothing(tmp_path: Path) -> None:
    save_file({"w": torch.ones(256, 256)}, tmp_path / "a.safetensors")
    save_file({"w": torch.zeros(256, 256)}, tmp_path / "b.safetensors")

    def use(_: int) -> None:
        assert not wl.diff(tmp_path / "a.safetensors", tmp_path / "b.safetensors").equal
        wl.verify(tmp_path / "a.safetensors")
        with pytest.raises(wl.UserError):
            wl.diff(tmp_path / "a.safetensors", tmp_path / "missing")

    # A tensor takes 256 KiB.
    assert_nothing_grows(use, 200, most_kib=4096)


def test_generations_leak_nothing(quickstart: Path) -> None:
    model = wl.Model(quickstart / "pretrain")

    def use(_: int) -> None:
        model.generate("A rank is", max_new_tokens=2)
        model.logits("A rank is one worker of a job.")
        stream = model.stream("A mesh is", max_new_tokens=64)
        next(stream)
        stream.close()

    assert_nothing_grows(use, 40, most_kib=4096)


def test_runs_leak_nothing(tmp_path: Path) -> None:
    def use(number: int) -> None:
        run = wl.train(config(tmp_path / str(number), max_steps=1), callbacks=[lambda record: None], ranks=2)
        assert run.finished

    assert_nothing_grows(use, 40, most_kib=4096)


def save(state: dict[str, Any], place: Path) -> None:
    """Saves once no other thread does: that is refused, since ranks could not tell which save is which."""
    while True:
        try:
            wl.save(state, place)
            return
        except wl.UserError as error:
            assert error.message == "another thread is saving with the same process group"
            time.sleep(0.001)


def test_threads_do_everything_at_once(quickstart: Path, tmp_path: Path) -> None:
    model = wl.Model(quickstart / "pretrain")
    expected = model.generate("A rank is", max_new_tokens=8)
    fingerprint = wl.open(quickstart / "pretrain").fingerprint()
    start = threading.Barrier(8)
    done: list[int] = []

    def work(number: int) -> None:
        start.wait()
        for turn in range(3):
            place = tmp_path / f"{number}-{turn}"
            state = {"w": torch.full((64, 64), float(number)), "turn": turn}
            save(state, place)
            target = {"w": torch.zeros(64, 64), "turn": -1}
            wl.load(target, place)
            assert target["turn"] == turn and bool((target["w"] == number).all())
            assert wl.diff(place, wl.open(place)).equal
            assert wl.open(quickstart / "pretrain").fingerprint() == fingerprint
            assert model.generate("A rank is", max_new_tokens=8) == expected
            wl.train(config(tmp_path / f"run-{number}-{turn}", max_steps=1))
        done.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == list(range(8))


def in_fork(work: Callable[[], object]) -> Any:
    """What a function returns in a forked process, or the exception that it raises there."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)

    def run() -> None:
        try:
            send.send(work())
        except BaseException as error:
            send.send(error)

    child = context.Process(target=run)
    child.start()
    send.close()
    try:
        assert receive.poll(60), "the forked process hangs"
        return receive.recv()
    finally:
        child.kill()
        child.join()


def test_a_forked_process_of_one_that_computes_is_refused_what_computes(quickstart: Path, tmp_path: Path) -> None:
    # Only this, so that a test that ran before is not what makes it so.
    wl.train(config(tmp_path / "run"))
    attempts: dict[str, Callable[[], object]] = {
        "train": lambda: wl.train(config(tmp_path / "forked")),
        "judge a model": lambda: wl.judge(quickstart / "sway.yaml"),
        "load a model": lambda: wl.Model(quickstart / "pretrain"),
    }
    for work, attempt in attempts.items():
        error = in_fork(attempt)
        assert isinstance(error, wl.UserError), work
        assert error.message == f"cannot {work} in a forked process: the threads that compute do not survive a fork"
        assert error.hint == "start processes with the method `spawn` or `forkserver`"
    assert isinstance(in_fork(lambda: wl.check(quickstart / "tune", base=quickstart / "pretrain")), wl.UserError)
    assert not (tmp_path / "forked").exists()


def test_a_forked_process_does_what_needs_no_computation(quickstart: Path, tmp_path: Path) -> None:
    wl.train(config(tmp_path / "run"))
    model = quickstart / "pretrain"
    fingerprint = wl.open(model).fingerprint()

    def work() -> list[object]:
        wl.convert(model, tmp_path / "copy", to="native")
        state = {"w": torch.ones(4), "n": 0}
        wl.save({"w": torch.zeros(4), "n": 1}, tmp_path / "saved")
        wl.load(state, tmp_path / "saved")
        plan = wl.dry_run(config(tmp_path / "planned"), ranks=4)
        same = wl.diff(model, tmp_path / "copy").equal
        return [wl.open(tmp_path / "copy").fingerprint(), same, state["n"], wl.verify(model).tensors > 0, plan.fits]

    assert in_fork(work) == [fingerprint, True, 1, True, True]


FORKS_FIRST = """
import json, os, sys
import weightloom as wl

config = json.loads(sys.argv[1])
child = os.fork()
if child == 0:
    os._exit(0 if wl.train(config).finished else 1)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
# Neither is the parent disturbed.
config["train"]["checkpoint"]["output_dir"] += "-of-parent"
print(code, wl.train(config).finished)
"""


def test_processes_forked_before_anything_is_computed_are_independent(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORKS_FIRST, json.dumps(config(tmp_path / "run"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("0 True\n", "")
