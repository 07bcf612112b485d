"""Writes values.json: forward and backward values of torch for our operations.

Run with any Python that has torch 2.15 (CPU):

    python make_values.py > values.json

Each case names an operation, its dtype and arguments, and holds the inputs, the
gradient given to the output, the output, and the gradients of the inputs, all
flattened. Half types are computed by torch in f32 from the rounded inputs and
not rounded again, so that the comparison sees our rounding alone.
"""

import json
import sys

import torch
import torch.nn.functional as F

torch.manual_seed(20261115)

UNARY = {
    "neg": torch.neg,
    "exp": torch.exp,
    "abs": torch.abs,
    "relu": F.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "cos": torch.cos,
    "sin": torch.sin,
    "clamp": lambda x: x.clamp(-0.5, 0.75),
    "cast": lambda x: x.to(torch.float64),
}
POSITIVE = {"log": torch.log, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "powf": lambda x: x**1.7}
BINARY = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div}
SHAPES = [[], [1], [17], [3, 5], [2, 0]]
PAIRS = [([3, 5], [3, 5]), ([3, 5], [5]), ([4, 1], [1, 7]), ([], [2, 2]), ([2, 1, 3], [4, 1]), ([0, 3], [3])]
PRODUCTS = [([3, 4], [4, 5]), ([1, 1], [1, 1]), ([2, 3, 4], [4, 6]), ([2, 1, 3, 2], [3, 2, 4]), ([3, 0], [0, 2]), ([33, 17], [17, 19])]
DTYPES = {"f64": torch.float64, "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}

cases = []


def rounded(value, dtype):
    """The value as an element of the dtype, in a type wide enough to compute in."""
    return value.to(dtype).to(torch.float64 if dtype == torch.float64 else torch.float32)


def case(op, dtype_name, inputs, function, **arguments):
    dtype = DTYPES[dtype_name]
    leaves = [rounded(value, dtype).clone().requires_grad_() for value in inputs]
    output = function(*leaves)
    gradient = rounded(torch.randn(output.shape, dtype=torch.float64), dtype)
    output.backward(gradient)
    flat = lambda t: [float(f"{v:.9g}") if dtype != torch.float64 else v for v in t.detach().flatten().tolist()]
    cases.append(
        {
            "op": op,
            "dtype": dtype_name,
            "arguments": arguments,
            "inputs": [{"shape": list(leaf.shape), "values": flat(leaf)} for leaf in leaves],
            "gradient": flat(gradient),
            "output": {"shape": list(output.shape), "values": flat(output)},
            "gradients": [flat(leaf.grad) for leaf in leaves],
        }
    )


def turned_half(x, angles):
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


def turned_pairs(x, angles):
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)


def normal(shape):
    return torch.randn(shape, dtype=torch.float64)


for dtype in DTYPES:
    shapes = SHAPES if dtype in ("f64", "f32") else SHAPES[2:4]
    for name, function in UNARY.items():
        for shape in shapes:
            case(name, dtype, [normal(shape)], function)
    for name, function in POSITIVE.items():
        for shape in shapes:
            case(name, dtype, [normal(shape).abs() + 0.25], function)
    for name, function in BINARY.items():
        for a, b in PAIRS if dtype in ("f64", "f32") else PAIRS[:3]:
            other = normal(b)
            other = other.sign() * (other.abs() + 0.5)
            case(name, dtype, [normal(a), other], function)
    for a, b in PRODUCTS if dtype == "f32" else PRODUCTS[:5]:
        case("matmul", dtype, [normal(a), normal(b)], torch.matmul)
    for dims in ([0], [1], [0, 2], [0, 1, 2]):
        case("sum", dtype, [normal([2, 3, 9])], lambda x: x.sum(dims), dims=dims)
        case("mean", dtype, [normal([2, 3, 9])], lambda x: x.mean(dims), dims=dims)
    for dim in (0, 1):
        case("softmax", dtype, [normal([5, 19]) * 3], lambda x: x.softmax(dim), dim=dim)
        case("log_softmax", dtype, [normal([5, 19]) * 3], lambda x: x.log_softmax(dim), dim=dim)
    case("rms_norm", dtype, [normal([4, 3, 35]), normal([35])], lambda x, w: F.rms_norm(x, [35], w, 1e-5), eps=1e-5)
    norm = lambda x, w, b: F.layer_norm(x, [35], w, b, 1e-5)
    case("layer_norm", dtype, [normal([2, 3, 35]), normal([35]), normal([35])], norm, eps=1e-5)
    for name, approximate in (("geglu", "none"), ("geglu_tanh", "tanh")):
        gate = lambda a, b: F.gelu(a, approximate=approximate) * b
        case(name, dtype, [normal([3, 7]), normal([3, 7])], gate)
    case("pow", dtype, [normal([3, 5]).abs() + 0.25, normal([5])], torch.pow)
    linear = lambda x, w, b, r: F.linear(x, w, b) + r
    case("linear", dtype, [normal([2, 3, 5]), normal([7, 5]), normal([7]), normal([2, 3, 7])], linear)
    case("linear", dtype, [normal([3, 5]), normal([7, 5]), normal([7]), normal([3, 7])], linear)
    groups = [2, 0, 3, 1]
    grouped = lambda x, w: torch.cat([part @ m for part, m in zip(x.split(groups), w)])
    case("grouped_matmul", dtype, [normal([6, 5]), normal([4, 5, 3])], grouped, indices=groups)
    # A last matrix product with more depth than one block, and odd sizes.
    case("matmul", dtype, [normal([3, 301]) / 8, normal([301, 5])], torch.matmul)
    for dims in ([0], [1], [0, 2], [0, 1, 2]):
        case("max", dtype, [normal([2, 3, 5])], lambda x: x.amax(dims), dims=dims)
        case("min", dtype, [normal([2, 3, 5])], lambda x: x.amin(dims), dims=dims)
        case("norm", dtype, [normal([2, 3, 5])], lambda x: torch.linalg.vector_norm(x, dim=dims), dims=dims)
        case("logsumexp", dtype, [normal([2, 3, 5])], lambda x: x.logsumexp(dims), dims=dims)
    case("prod", dtype, [normal([3, 5])], lambda x: x.prod(1), dims=[1])
    case("prod", dtype, [normal([3, 5])], lambda x: x.prod(0), dims=[0])
    with_zero = normal([2, 4])
    with_zero[0, 1] = 0
    case("prod", dtype, [with_zero], lambda x: x.prod(1), dims=[1])
    for dim in (0, 1):
        case("cat", dtype, [normal([2, 3]), normal([2, 3])], lambda a, b: torch.cat([a, b], dim), dim=dim)
        case("stack", dtype, [normal([2, 3]), normal([2, 3])], lambda a, b: torch.stack([a, b], dim), dim=dim)
        case("cumsum", dtype, [normal([4, 9])], lambda x: x.cumsum(dim), dim=dim)
        case("topk", dtype, [normal([4, 5])], lambda x: x.topk(3, dim)[0], dim=dim)
        case("sort", dtype, [normal([4, 5])], lambda x: x.sort(dim)[0], dim=dim)
        chosen = [1, 3, 1]
        case("index_select", dtype, [normal([4, 5])], lambda x: x.index_select(dim, torch.tensor(chosen)), dim=dim, indices=chosen)
        picks = torch.tensor([[0, 1, 1], [2, 0, 1]])
        base = normal([3, 3])
        case("gather", dtype, [base], lambda x: x.gather(dim, picks), dim=dim, indices=picks.flatten().tolist())
        add = lambda x, y: x.scatter_add(dim, picks, y)
        case("scatter_add", dtype, [base, normal([2, 3])], add, dim=dim, indices=picks.flatten().tolist())
    once = torch.tensor([[0, 1, 2], [2, 0, 1]])
    case("scatter", dtype, [normal([3, 3]), normal([2, 3])], lambda x, y: x.scatter(1, once, y), dim=1, indices=once.flatten().tolist())
    case("pad", dtype, [normal([2, 3])], lambda x: F.pad(x, (1, 2), value=0.5))
    case("repeat", dtype, [normal([2, 3])], lambda x: x.repeat(2, 1, 3))
    case("split", dtype, [normal([2, 5])], lambda x: x.split([2, 3], 1)[1])
    for offset in (-1, 0, 2):
        case("tril", dtype, [normal([3, 4])], lambda x: x.tril(offset), offset=offset)
        case("triu", dtype, [normal([2, 4, 3])], lambda x: x.triu(offset), offset=offset)
    mask = torch.tensor([[True, False, True], [False, False, True]])
    flat_mask = mask.flatten().int().tolist()
    case("select", dtype, [normal([2, 3]), normal([3])], lambda a, b: torch.where(mask, a, b), indices=flat_mask)
    case("masked_fill", dtype, [normal([2, 3])], lambda x: x.masked_fill(mask, -2.0), indices=flat_mask)
    smooth = lambda x: F.cross_entropy(x, torch.tensor([1, -100, 3, 0, 10]), ignore_index=-100, label_smoothing=0.2)
    case("smooth_cross_entropy", dtype, [normal([5, 11]) * 3], smooth, targets=[1, -100, 3, 0, 10])
    projected = lambda h, w: F.cross_entropy(h @ w.T, torch.tensor([1, -100, 3, 0, 10]), ignore_index=-100)
    case("projected_cross_entropy", dtype, [normal([5, 6]), normal([11, 6])], projected, targets=[1, -100, 3, 0, 10])
    case("swiglu", dtype, [normal([3, 7]), normal([3, 7])], lambda a, b: F.silu(a) * b)
    angles = torch.rand(5, 3, dtype=torch.float64) * 6
    flat_angles = angles.flatten().tolist()
    case("rope_half", dtype, [normal([2, 5, 6])], lambda x: turned_half(x, angles), angles=flat_angles)
    case("rope_interleaved", dtype, [normal([2, 5, 6])], lambda x: turned_pairs(x, angles), angles=flat_angles)
    for heads, kv_heads, queries, keys, causal in ((2, 2, 5, 5, True), (4, 2, 3, 7, False), (3, 1, 6, 6, True)):
        attention = lambda q, k, v: F.scaled_dot_product_attention(
            q, k, v, is_causal=causal, enable_gqa=heads != kv_heads
        )
        sides = [normal([2, heads, queries, 4]), normal([2, kv_heads, keys, 4]), normal([2, kv_heads, keys, 4])]
        case("attention", dtype, sides, attention, causal=causal)
    # Grouped heads, a cache of earlier keys, a window, a soft cap, padding.
    for options in (
        {"heads": 4, "queries": 3, "keys": 3},
        {"heads": 2, "queries": 2, "keys": 5},
        {"heads": 2, "queries": 6, "keys": 6, "window": 3},
        {"heads": 2, "queries": 4, "keys": 4, "cap": 0.8},
        {"heads": 2, "queries": 4, "keys": 5, "padding": [1, 1, 0, 1, 1, 1, 0, 1, 1, 0]},
        {"heads": 2, "queries": 70, "keys": 70, "width": 2, "window": 66},
    ):
        queries, keys, width = options["queries"], options["keys"], options.get("width", 6)
        position = torch.arange(queries)[:, None] + keys - queries
        seen = torch.arange(keys)[None] <= position
        if "window" in options:
            seen = seen & (torch.arange(keys)[None] > position - options["window"])
        seen = seen.expand(2, 1, queries, keys)
        if "padding" in options:
            seen = seen & torch.tensor(options["padding"]).bool().view(2, 1, 1, keys)

        def general(q, k, v):
            k, v = (x.repeat_interleave(options["heads"] // 2, 1) for x in (k, v))
            scores = q @ k.transpose(2, 3) / width**0.5
            if "cap" in options:
                scores = options["cap"] * torch.tanh(scores / options["cap"])
            return scores.masked_fill(~seen, -torch.inf).softmax(3) @ v

        sides = [normal([2, options["heads"], queries, width]), normal([2, 2, keys, width]), normal([2, 2, keys, width])]
        arguments = {"causal": True, "window": options.get("window"), "cap": options.get("cap"), "indices": options.get("padding", [])}
        case("attention", dtype, sides, general, **arguments)
    indices = [2, 0, 2, 3, 1, 2]
    case("embedding", dtype, [normal([4, 9])], lambda t: F.embedding(torch.tensor(indices), t), indices=indices)
    targets = [1, -100, 3, 0, 10]
    loss = lambda x: F.cross_entropy(x, torch.tensor(targets), ignore_index=-100)
    case("cross_entropy", dtype, [normal([5, 11]) * 3], loss, targets=targets)

# Three steps of AdamW from given gradients.
start, steps = normal([37]), [normal([37]) for _ in range(3)]
parameter = torch.nn.Parameter(start.clone())
optimizer = torch.optim.AdamW([parameter], lr=0.02, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1)
for gradient in steps:
    parameter.grad = gradient.clone()
    optimizer.step()
adamw = {
    "start": start.tolist(),
    "gradients": [gradient.tolist() for gradient in steps],
    "end": parameter.detach().tolist(),
    "norm": torch.nn.utils.get_total_norm(steps).item(),
}

# Every 8-bit float, and what numbers near them become.
eight = {}
near = torch.cat([normal([200]), normal([200]) * 100, normal([50]) * 1e-3, torch.tensor([448, 449, 464, 465, 5e4, 61440, 61439, 1e6])]).float()
for name, dtype in (("f8e4m3", torch.float8_e4m3fn), ("f8e5m2", torch.float8_e5m2)):
    codes = torch.arange(256, dtype=torch.uint8).view(dtype).float().tolist()
    rounded_to = near.to(dtype).float().tolist()
    # JSON has no NaN and no infinity.
    named = lambda values: [None if v != v else max(min(v, 1e30), -1e30) for v in values]
    eight[name] = {"codes": named(codes), "near": near.tolist(), "rounded": named(rounded_to)}

json.dump({"adamw": adamw, "float8": eight, "torch": torch.__version__.split("+")[0], "cases": cases}, sys.stdout, separators=(",", ":"))
