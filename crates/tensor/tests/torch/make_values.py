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
}
POSITIVE = {"log": torch.log, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt}
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
    leaves = [rounded(value, dtype).requires_grad_() for value in inputs]
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

json.dump({"adamw": adamw, "torch": torch.__version__.split("+")[0], "cases": cases}, sys.stdout, separators=(",", ":"))
