"""Checkpoints of `torch.distributed.checkpoint`, exchanged between its ranks and ours."""

import json
import os
import pathlib
import subprocess
import sys

import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from compare import MESHES, check_all_formats, read_dcp, same

GLOO_SECONDS = 90


def run(place, ours, report):
    on_gloo("save", place)
    names = sorted(path.name for path in place.iterdir() if path.is_dir())
    for name in names:
        tensors, values = place / f"{name}.safetensors", json.loads((place / f"{name}.json").read_text())
        expected = load_file(tensors)
        check_all_formats(report, ours, f"torch DCP of {name}, saved by 2 ranks", place / name, expected, values)
        with report.check(f"DCP of {name}, saved by 4 ranks → torch on one process") as check:
            ours.ranks("dcp", place / f"{name}.ours", tensors, MESHES[4], values=values)
            found, found_values = read_dcp(place / f"{name}.ours", expected, values)
            check.count = same(found, expected)
            assert found_values == values, f"{found_values} is not {values}"
        with report.check(f"DCP of {name}, saved by 4 ranks → dcp_to_torch_save → torch.load") as check:
            dcp_to_torch_save(place / f"{name}.ours", place / f"{name}.pt")
            found = torch.load(place / f"{name}.pt")
            assert {key: found.pop(key) for key in values} == values
            check.count = same(found, expected)
        with report.check(f"DCP of {name}, saved by 4 ranks → 3 ranks") as check:
            check.count = ours.ranks("load", place / f"{name}.ours", tensors, MESHES[3], values=values)
    for line in on_gloo("load", place).splitlines():
        name, count = line.split()
        with report.check(f"DCP of {name}, saved by 4 ranks → torch on 2 ranks → torch DCP, the same fingerprint") as check:
            fingerprints = {ours.fingerprint(place / f"{name}{end}") for end in ("", ".safetensors", ".ours", ".again")}
            assert len(fingerprints) == 1, fingerprints
            check.count = int(count)


def on_gloo(action, place, ranks=2):
    """Runs `torch_ranks.py` on every rank; returns the output of rank 0."""
    script = pathlib.Path(__file__).with_name("torch_ranks.py")
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "WORLD_SIZE": str(ranks)}
    started = [
        subprocess.Popen([sys.executable, script, action, place], env=environment | {"RANK": str(rank)}, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for rank in range(ranks)
    ]
    try:
        outputs = [process.communicate(timeout=GLOO_SECONDS) for process in started]
    finally:
        for process in started:
            process.kill()
    for process, (_, errors) in zip(started, outputs):
        if process.returncode != 0:
            raise RuntimeError(f"a torch rank exited with {process.returncode}: {errors.strip()}")
    return outputs[0][0]
