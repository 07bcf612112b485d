"""Writes regions.json: which region torch DTensor gives each rank.

Run with any Python that has torch 2.15 (no GPU, no process group needed):

    python make_regions.py > regions.json

Each case holds a tensor shape, mesh sizes, one placement per axis in
Weightloom's text form, and per coordinate (last axis fastest) the offset and
size torch computes. Plain shards are random, uneven and empty sizes included.
Strided shards are those that FSDP after tensor parallelism produces; torch
describes them as a split factor on the outer axis.
"""

import itertools
import json
import random
import sys

import torch
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import Replicate, Shard, _StridedShard

random.seed(20261115)


def regions(shape, mesh, placements):
    found = []
    for coordinate in itertools.product(*[range(size) for size in mesh]):
        size, offset = _compute_local_shape_and_global_offset(
            shape, mesh, list(coordinate), placements
        )
        found.append([list(offset), list(size)])
    return found


cases = []
for _ in range(400):
    mesh = [random.randint(1, 5) for _ in range(random.randint(1, 3))]
    shape = [random.randint(0, 17) for _ in range(random.randint(1, 3))]
    text, placements = [], []
    for _ in mesh:
        dim = random.randrange(-1, len(shape))
        placements.append(Replicate() if dim < 0 else Shard(dim))
        text.append("R" if dim < 0 else f"S({dim})")
    cases.append((shape, mesh, text, placements))

for dp, tp in itertools.product(range(1, 5), repeat=2):
    for factor in (1, 2, 3):
        shape = [3, dp * tp * factor]
        placements = [_StridedShard(1, split_factor=tp), Shard(1)]
        cases.append((shape, [dp, tp], ["S(1)@1", "S(1)@0"], placements))

json.dump(
    {
        "torch": torch.__version__.split("+")[0],
        "cases": [
            {"shape": shape, "mesh": mesh, "placements": text, "regions": regions(shape, mesh, placements)}
            for shape, mesh, text, placements in cases
        ],
    },
    sys.stdout,
    separators=(",", ":"),
)
