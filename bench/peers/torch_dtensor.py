"""Torch DTensor peer of benches/dtensor.rs: reads the name of a case per line,
prints the seconds by which the distributed call exceeds the local one, or `-`
for an unknown case."""

import os
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch.distributed.tensor import Replicate, distribute_tensor

os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", "29517")
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo", rank=0, world_size=1)
mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
spread = lambda t: distribute_tensor(t, mesh, [Replicate()])
plain = [torch.randn(4, 8), torch.randn(4, 8), torch.randn(8), torch.randn(8)]
distributed = [spread(t) for t in plain]
cases = {
    "add": lambda x, y, w, b: x + y,
    "layer norm": lambda x, y, w, b: F.layer_norm(x, [8], w, b),
    "operation with a number": lambda x, y, w, b: x + 2.0,
}


def once(work, operands):
    times = []
    for _ in range(40):
        begin = time.perf_counter()
        for _ in range(100):
            work(*operands)
        times.append((time.perf_counter() - begin) / 100)
    return statistics.median(times)


with torch.no_grad():
    for line in sys.stdin:
        work = cases.get(line.strip())
        print(once(work, distributed) - once(work, plain) if work else "-", flush=True)
