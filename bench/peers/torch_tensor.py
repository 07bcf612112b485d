"""Times torch on the cases of benches/tensor.rs; prints one JSON object, seconds by case.

Allocator thresholds should be raised, as the benchmark does, so that torch too
reuses memory instead of faulting in fresh pages.
"""

import json
import statistics
import sys
import time

import torch
import torch.nn.functional as F

torch.set_num_threads(int(sys.argv[1]))
torch.manual_seed(1)


def median(work):
    work()
    times = []
    begun = time.perf_counter()
    while len(times) < 5 or (time.perf_counter() - begun < 1.0 and len(times) < 200):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


results = {}
x = torch.randn(1024, 1024)
results["matmul 1024 f32"] = median(lambda: x @ x)
h = x.bfloat16()
results["matmul 1024 bf16"] = median(lambda: h @ h)
big = torch.randn(2048, 2048)
up = torch.randn(2048, 2048)
w = torch.randn(2048)
results["softmax 2048²"] = median(lambda: big.softmax(1))
results["rms norm 2048²"] = median(lambda: F.rms_norm(big, [2048], w, 1e-5))
results["swiglu 2048²"] = median(lambda: F.silu(big) * up)
results["gelu 2048²"] = median(lambda: F.gelu(big))
results["add 2048²"] = median(lambda: big + up)
logits = torch.randn(512, 8192, requires_grad=True)
targets = torch.randint(0, 8192, (512,))


def entropy():
    logits.grad = None
    F.cross_entropy(logits, targets).backward()


results["cross-entropy 512 × 8192, forward + backward"] = median(entropy)
q, k, v = (torch.randn(1, 8, 512, 64, requires_grad=True) for _ in range(3))
results["attention h8 t512 d64, forward"] = median(
    lambda: F.scaled_dot_product_attention(q.detach(), k.detach(), v.detach(), is_causal=True)
)


def attend():
    for t in (q, k, v):
        t.grad = None
    F.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()


results["attention h8 t512 d64, forward + backward"] = median(attend)

weights = torch.nn.Parameter(torch.randn(1 << 22))
weights.grad = torch.randn(1 << 22)
optimizer = torch.optim.AdamW([weights], fused=True)
results["AdamW step, 4 Mi f32"] = median(optimizer.step)

batch, time_, hidden, heads, kv_heads, inner = 4, 128, 576, 9, 3, 1536
width = hidden // heads
param = lambda *shape: (torch.randn(*shape) * 0.05).requires_grad_()
p = {
    "norm1": param(hidden), "norm2": param(hidden),
    "q": param(heads * width, hidden), "k": param(kv_heads * width, hidden), "v": param(kv_heads * width, hidden),
    "o": param(hidden, heads * width), "gate": param(inner, hidden), "up": param(inner, hidden), "down": param(hidden, inner),
}
inputs = torch.randn(batch, time_, hidden, requires_grad=True)
angles = torch.outer(torch.arange(time_).float(), 10000 ** (-torch.arange(0, width, 2).float() / width))
cos, sin = angles.cos(), angles.sin()


def turn(t):
    a, b = t.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def block():
    for t in (*p.values(), inputs):
        t.grad = None
    n = F.rms_norm(inputs, [hidden], p["norm1"], 1e-5)
    split = lambda t, count: t.view(batch, time_, count, width).transpose(1, 2)
    a = F.scaled_dot_product_attention(
        turn(split(F.linear(n, p["q"]), heads)), turn(split(F.linear(n, p["k"]), kv_heads)), split(F.linear(n, p["v"]), kv_heads),
        is_causal=True, enable_gqa=True,
    )
    r = inputs + F.linear(a.transpose(1, 2).reshape(batch, time_, heads * width), p["o"])
    n = F.rms_norm(r, [hidden], p["norm2"], 1e-5)
    out = r + F.linear(F.silu(F.linear(n, p["gate"])) * F.linear(n, p["up"]), p["down"])
    out.sum().backward()


results["Llama block 576, 4 × 128, forward + backward"] = median(block)
print(json.dumps(results))
