"""Torch peer of benches/tensor.rs: reads the name of a case per line, prints the
seconds of one run, or `-` for an unknown case."""

import statistics
import sys
import time

import torch
import torch.nn.functional as F

torch.set_num_threads(int(sys.argv[1]))
torch.manual_seed(1)

cases = {}


def case(name):
    """Registers a function that sets up the case and returns the function to time."""

    def register(make):
        cases[name] = make
        return make

    return register


def of(make_inputs, work):
    def make():
        inputs = make_inputs()
        return lambda: work(*inputs)

    return make


square = lambda: (torch.randn(1024, 1024),) * 2
rows = lambda: (torch.randn(2048, 2048), torch.randn(2048, 2048), torch.randn(2048))
cases["matmul 1024 f32"] = of(square, lambda a, b: a @ b)
cases["matmul 1024 bf16"] = of(lambda: [x.bfloat16() for x in square()], lambda a, b: a @ b)
token = lambda: (torch.randn(1, 4096), torch.randn(4096, 4096))
cases["one row through 4096² f32"] = of(token, F.linear)
cases["one row through 4096² bf16"] = of(lambda: [x.bfloat16() for x in token()], F.linear)
cases["softmax 2048²"] = of(rows, lambda x, u, w: x.softmax(1))
cases["RMS norm 2048²"] = of(rows, lambda x, u, w: F.rms_norm(x, [2048], w, 1e-5))
cases["swiglu 2048²"] = of(rows, lambda x, u, w: F.silu(x) * u)
cases["gelu 2048²"] = of(rows, lambda x, u, w: F.gelu(x))
cases["add 2048²"] = of(rows, lambda x, u, w: x + u)


def angles(positions, width):
    turns = torch.outer(torch.arange(positions).float(), 10000 ** (-torch.arange(0, width, 2).float() / width))
    return turns.cos(), turns.sin()


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


cases["rope 4 × 9 × 512 × 64"] = of(lambda: (torch.randn(4, 9, 512, 64), *angles(512, 64)), rotate)


@case("cross-entropy 512 × 8192, forward + backward")
def entropy():
    leaf = torch.randn(512, 8192, requires_grad=True)
    targets = torch.arange(512) * 16

    def work():
        leaf.grad = None
        F.cross_entropy(leaf, targets).backward()

    return work


qkv = lambda: [torch.randn(1, 8, 512, 64, requires_grad=True) for _ in range(3)]
cases["attention h8 t512 d64, forward"] = of(
    lambda: [x.detach() for x in qkv()], lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)
)


@case("attention h8 t512 d64, forward + backward")
def attention():
    leaves = qkv()

    def work():
        for leaf in leaves:
            leaf.grad = None
        F.scaled_dot_product_attention(*leaves, is_causal=True).sum().backward()

    return work


@case("AdamW step, 4 Mi f32")
def adamw():
    weights = torch.nn.Parameter(torch.randn(1 << 22))
    weights.grad = torch.randn(1 << 22)
    return torch.optim.AdamW([weights], fused=True).step


BLOCK = "Llama block 576, 4 × 128, forward + backward"


@case(BLOCK)
def block():
    batch, steps, hidden, heads, kv_heads, inner = 4, 128, 576, 9, 3, 1536
    width = hidden // heads
    param = lambda *shape: (torch.randn(*shape) * 0.05).requires_grad_()
    p = {
        "norm1": param(hidden), "norm2": param(hidden),
        "q": param(heads * width, hidden), "k": param(kv_heads * width, hidden), "v": param(kv_heads * width, hidden),
        "o": param(hidden, heads * width), "gate": param(inner, hidden), "up": param(inner, hidden), "down": param(hidden, inner),
    }
    inputs = torch.randn(batch, steps, hidden, requires_grad=True)
    cos, sin = angles(steps, width)
    split = lambda t, count: t.view(batch, steps, count, width).transpose(1, 2)

    def forward():
        n = F.rms_norm(inputs, [hidden], p["norm1"], 1e-5)
        a = F.scaled_dot_product_attention(
            rotate(split(F.linear(n, p["q"]), heads), cos, sin),
            rotate(split(F.linear(n, p["k"]), kv_heads), cos, sin),
            split(F.linear(n, p["v"]), kv_heads),
            is_causal=True, enable_gqa=True,
        )
        r = inputs + F.linear(a.transpose(1, 2).reshape(batch, steps, heads * width), p["o"])
        n = F.rms_norm(r, [hidden], p["norm2"], 1e-5)
        return r + F.linear(F.silu(F.linear(n, p["gate"])) * F.linear(n, p["up"]), p["down"])

    def work():
        for t in (*p.values(), inputs):
            t.grad = None
        forward().sum().backward()

    return work


def peak_memory(work):
    """Peak bytes beyond those held before, from the allocator's events."""
    work()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        work()
    held = most = 0
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


made = {}
for line in sys.stdin:
    name = line.strip()
    memory = name.startswith("peak memory of ")
    name = name.removeprefix("peak memory of ")
    if name not in cases:
        print("-", flush=True)
        continue
    if name not in made:
        made = {name: cases[name]()}
        made[name]()
    work = made[name]
    if memory:
        print(peak_memory(work), flush=True)
        continue
    times = []
    begun = time.perf_counter()
    while len(times) < 5 or (time.perf_counter() - begun < 0.25 and len(times) < 2000):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    print(statistics.median(times), flush=True)
