"""Torch peer of benches/decode.rs: reads the name of a case per line, prints the
seconds of one run, or `-` for an unknown case."""

import itertools
import re
import statistics
import sys
import time

import torch
import torch.nn.functional as F

torch.set_num_threads(int(sys.argv[1]))
torch.manual_seed(1)
torch.set_grad_enabled(False)

LAYERS, HIDDEN, HEADS, KV_HEADS, WIDTH, INNER = 30, 576, 9, 3, 64, 1536
VOCABULARY, CAPACITY, CONTEXT = 49152, 512, 256
COLD_BYTES = 128 << 20
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def normal(dtype, *dims):
    return (torch.randn(*dims) * 0.04).to(dtype)


def product(rows, n, k, dtype):
    count = max(2, COLD_BYTES // (n * k * dtype.itemsize))
    weights = itertools.cycle([normal(dtype, n, k) for _ in range(count)])
    x = normal(dtype, rows, k)
    return lambda: F.linear(x, next(weights))


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class Model:
    def __init__(self, dtype):
        weight = lambda *dims: normal(dtype, *dims)
        self.embedding, self.norm = weight(VOCABULARY, HIDDEN), weight(HIDDEN)
        self.layers = [
            dict(
                norm1=weight(HIDDEN), norm2=weight(HIDDEN),
                q=weight(HEADS * WIDTH, HIDDEN), k=weight(KV_HEADS * WIDTH, HIDDEN),
                v=weight(KV_HEADS * WIDTH, HIDDEN), o=weight(HIDDEN, HEADS * WIDTH),
                gate=weight(INNER, HIDDEN), up=weight(INNER, HIDDEN), down=weight(HIDDEN, INNER),
                keys=torch.zeros(1, KV_HEADS, CAPACITY, WIDTH, dtype=dtype),
                values=torch.zeros(1, KV_HEADS, CAPACITY, WIDTH, dtype=dtype),
            )
            for _ in range(LAYERS)
        ]
        turns = torch.outer(torch.arange(CAPACITY).float(), 10000 ** (-torch.arange(0, WIDTH, 2).float() / WIDTH))
        self.cos, self.sin = turns.cos().to(dtype), turns.sin().to(dtype)

    def forward(self, tokens, start):
        count = len(tokens)
        end = start + count
        x = F.embedding(tokens, self.embedding)
        cos, sin = self.cos[start:end], self.sin[start:end]
        split = lambda t, heads: t.view(1, count, heads, WIDTH).transpose(1, 2)
        for p in self.layers:
            n = F.rms_norm(x, [HIDDEN], p["norm1"], 1e-5)
            q = rotate(split(F.linear(n, p["q"]), HEADS), cos, sin)
            p["keys"][:, :, start:end] = rotate(split(F.linear(n, p["k"]), KV_HEADS), cos, sin)
            p["values"][:, :, start:end] = split(F.linear(n, p["v"]), KV_HEADS)
            a = F.scaled_dot_product_attention(
                q, p["keys"][:, :, :end], p["values"][:, :, :end], is_causal=count > 1, enable_gqa=True
            )
            x = x + F.linear(a.transpose(1, 2).reshape(count, HEADS * WIDTH), p["o"])
            n = F.rms_norm(x, [HIDDEN], p["norm2"], 1e-5)
            x = x + F.linear(F.silu(F.linear(n, p["gate"])) * F.linear(n, p["up"]), p["down"])
        return F.linear(F.rms_norm(x, [HIDDEN], self.norm, 1e-5), self.embedding)


def make(name):
    found = re.fullmatch(r"(\d+) × \d+ through (\d+) × (\d+) (\w+)", name)
    if found:
        rows, n, k, dtype = found.groups()
        return product(int(rows), int(n), int(k), DTYPES[dtype])
    found = re.fullmatch(r"(one token|256 tokens) through 135M (\w+)", name)
    if found:
        what, dtype = found.groups()
        model = Model(DTYPES[dtype])
        if what == "one token":
            return lambda: model.forward(torch.tensor([7]), CONTEXT - 1)
        return lambda: model.forward(torch.arange(CONTEXT), 0)
    return None


made = {}
for line in sys.stdin:
    name = line.strip()
    if name not in made:
        made.clear()
        made[name] = make(name)
        if made[name]:
            made[name]()
    work = made[name]
    if work is None:
        print("-", flush=True)
        continue
    times = []
    begun = time.perf_counter()
    while len(times) < 5 or (time.perf_counter() - begun < 0.25 and len(times) < 2000):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    print(statistics.median(times), flush=True)
