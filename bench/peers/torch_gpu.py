"""Training steps of a Llama with 1.2 billion weights in torch: a lean model with fused projections, compiled.

Usage: torch_gpu.py full|lora. Prints a line of JSON.
"""

import json
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

HIDDEN, LAYERS, HEADS, KV_HEADS, WIDTH, INNER, VOCABULARY = 2048, 16, 32, 8, 64, 8192, 128256
ROWS, TIME = 8, 2048
RANK = 16


def linear(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False, device="cuda", dtype=torch.bfloat16)


class Adapted(nn.Module):
    """A frozen projection and its low-rank update."""

    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        outputs, inputs = base.weight.shape
        self.down = nn.Parameter(0.01 * torch.randn(RANK, inputs, device="cuda"))
        self.up = nn.Parameter(torch.zeros(outputs, RANK, device="cuda"))

    def forward(self, x):
        low = F.linear(x, self.down.bfloat16())
        return self.base(x) + 2.0 * F.linear(low, self.up.bfloat16())


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = linear(HIDDEN, (HEADS + 2 * KV_HEADS) * WIDTH)
        self.out = linear(HEADS * WIDTH, HIDDEN)
        self.gate_and_up = linear(HIDDEN, 2 * INNER)
        self.down = linear(INNER, HIDDEN)
        self.norms = nn.ModuleList(nn.RMSNorm(HIDDEN, device="cuda", dtype=torch.bfloat16) for _ in range(2))

    def forward(self, x, cos, sin):
        rows, length, _ = x.shape
        sizes = [HEADS * WIDTH, KV_HEADS * WIDTH, KV_HEADS * WIDTH]
        parts = self.heads(self.norms[0](x)).split(sizes, -1)
        query, key, value = (part.view(rows, length, -1, WIDTH).transpose(1, 2) for part in parts)

        def rotate(z):
            first, second = z.chunk(2, -1)
            return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)

        attended = F.scaled_dot_product_attention(rotate(query), rotate(key), value, is_causal=True, enable_gqa=True)
        x = x + self.out(attended.transpose(1, 2).reshape(rows, length, -1))
        gate, up = self.gate_and_up(self.norms[1](x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN, device="cuda", dtype=torch.bfloat16)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(HIDDEN, device="cuda", dtype=torch.bfloat16)
        frequencies = 10000.0 ** (-torch.arange(0, WIDTH, 2, device="cuda") / WIDTH)
        angles = torch.outer(torch.arange(TIME, device="cuda").float(), frequencies)
        self.cos, self.sin = angles.cos().bfloat16(), angles.sin().bfloat16()

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return F.linear(self.norm(x), self.embedding.weight)


def main():
    case = sys.argv[1]
    torch.manual_seed(0)
    model = Model()
    if case == "lora":
        model.requires_grad_(False)
        for layer in model.layers:
            layer.heads, layer.out = Adapted(layer.heads), Adapted(layer.out)
    else:
        model = model.float()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)

    def loss(tokens, targets):
        with torch.autocast("cuda", torch.bfloat16, enabled=case == "full"):
            logits = model(tokens)
            return F.cross_entropy(logits.view(-1, VOCABULARY).float(), targets.view(-1))

    compiled = torch.compile(loss)

    def step(number):
        tokens = torch.randint(0, VOCABULARY, (ROWS, TIME + 1), device="cuda")
        compiled(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()).backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for number in range(4):
        step(number)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    for number in range(6):
        step(number)
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - begin) / 6
    print(json.dumps({"tokens_per_second": ROWS * TIME / seconds, "peak": torch.cuda.max_memory_allocated()}))


main()
