"""Torch DCP and safetensors peer of benches/checkpoint.rs: reads the name of a
case per line, prints its seconds, or `-` for an unknown case. Arguments: a
folder and the number of layers."""

import os
import shutil
import sys
import time
import warnings

import torch
import torch.distributed.checkpoint as dcp
from llama_shapes import shapes
from safetensors.torch import load_file, save_file

warnings.filterwarnings("ignore")
folder, layers = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(2)


def state():
    torch.manual_seed(1)
    return {k: torch.empty(s, dtype=torch.bfloat16).uniform_() for k, s in shapes(layers)}


def plan(tensors, ranks):
    """The work of DCP's coordinator on the plans of all ranks."""
    import pickle

    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
    from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType

    def item(name, rank):
        rows = 8960 // ranks
        offsets, sizes = torch.Size([rank * rows, 0]), torch.Size([rows, 64])
        data = TensorWriteData(
            chunk=ChunkStorageMetadata(offsets=offsets, sizes=sizes),
            properties=TensorProperties(dtype=torch.bfloat16),
            size=torch.Size([rows * ranks, 64]),
        )
        return WriteItem(index=MetadataIndex(name, offsets), type=WriteItemType.SHARD, tensor_data=data)

    plans = [
        SavePlan([item(f"t{t}", rank) for t in range(tensors)], planner_data={}) for rank in range(ranks)
    ]
    planner = DefaultSavePlanner()
    planner.set_up_planner({}, is_coordinator=True)
    begin = time.perf_counter()
    received = [pickle.loads(pickle.dumps(one)) for one in plans]
    planned, metadata = planner.create_global_plan(received)
    sent = [pickle.dumps(one) for one in planned]
    written = pickle.dumps(metadata)
    elapsed = time.perf_counter() - begin
    assert sent
    return elapsed, len(written)


weights = state()
dcp_folder, single = os.path.join(folder, "dcp"), os.path.join(folder, "peer.safetensors")


def save_dcp():
    dcp.save(weights, storage_writer=dcp.FileSystemWriter(dcp_folder, overwrite=True), no_dist=True)


def save_safetensors():
    save_file(weights, single)
    with open(single, "rb+") as file:
        os.fsync(file.fileno())


def load_dcp():
    dcp.load(weights, storage_reader=dcp.FileSystemReader(dcp_folder), no_dist=True)


def load_dcp_new():
    fresh = {k: torch.empty_like(v) for k, v in weights.items()}
    dcp.load(fresh, storage_reader=dcp.FileSystemReader(dcp_folder), no_dist=True)


def load_safetensors():
    # `load_file` maps the file; cloning reads it.
    return {k: v.clone() for k, v in load_file(single).items()}


cases = {
    "save dcp": (lambda: shutil.rmtree(dcp_folder, ignore_errors=True), save_dcp),
    "save safetensors": (lambda: os.path.exists(single) and os.remove(single), save_safetensors),
    "load dcp": (lambda: None, load_dcp),
    "load dcp new": (lambda: None, load_dcp_new),
    "load safetensors": (lambda: None, load_safetensors),
}
for line in sys.stdin:
    words = line.split()
    if words[:1] in (["plan"], ["metadata"]):
        print(plan(int(words[1]), int(words[2]))[words[0] == "metadata"], flush=True)
        continue
    found = cases.get(line.strip())
    if not found:
        print("-", flush=True)
        continue
    prepare, work = found
    prepare()
    begin = time.perf_counter()
    result = work()
    elapsed = time.perf_counter() - begin
    del result
    print(elapsed, flush=True)
