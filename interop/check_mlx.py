"""MLX models and adapters, on the CPU backend of MLX."""

import json

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import torch
from mlx.utils import tree_flatten
from peft import PeftModel
from peft.utils import get_peft_model_state_dict

from check_models import logits, tiny
from compare import check_all_formats, read_hf, same

mx.set_default_device(mx.cpu)


def to_torch(array):
    if array.dtype == mx.bfloat16:
        return torch.from_numpy(np.array(array.view(mx.uint16))).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def run(place, ours, report):
    mx.random.seed(1)
    arrays(place, ours, report)
    quantised(place, ours, report)
    adapter(place, ours, report)


def arrays(place, ours, report):
    some = {
        "f32": mx.random.normal((5, 3)), "f16": mx.random.normal((4, 6)).astype(mx.float16),
        "turned": mx.random.normal((5, 3)).T, "i32": mx.arange(7), "u8": mx.arange(9).astype(mx.uint8),
        "flags": mx.arange(4) > 1, "scalar": mx.array(2.5), "bf16": mx.random.normal((3, 5)).astype(mx.bfloat16),
    }
    for name, save in {"mlx.safetensors": mx.save_safetensors, "mlx.npz": lambda path, all: mx.savez(path, **all)}.items():
        path = place / name
        save(str(path), some)
        expected = {key: to_torch(value) for key, value in mx.load(str(path)).items()}
        check_all_formats(report, ours, f"{name} of mlx.core", path, expected)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.o_proj, self.norm = nn.Linear(128, 96, bias=True), nn.Linear(96, 128), nn.RMSNorm(128)


class Model(nn.Module):
    """Modules with the names of mlx-lm."""

    def __init__(self):
        super().__init__()
        self.embed_tokens, self.layers = nn.Embedding(37, 128), [Block(), Block()]


def quantised(place, ours, report):
    numbers = [(4, 64, mx.bfloat16), (8, 32, mx.float16), (4, 32, mx.float32), (8, 64, mx.bfloat16), (6, 32, mx.float16)]
    for bits, group, dtype in numbers:
        model = Model()
        model.set_dtype(dtype)
        # As in mlx-lm, one layer is quantized differently and one not at all: 96 elements are not whole groups of 64.
        own = {"layers.1.q_proj": {"group_size": 32, "bits": 3}}
        whole = lambda path, layer: (
            hasattr(layer, "to_quantized") and layer.weight.shape[-1] % group == 0 and own.get(path, True)
        )
        nn.quantize(model, group, bits, class_predicate=whole)
        weights = {f"model.{name}": value for name, value in tree_flatten(model.parameters())}
        section = {"group_size": group, "bits": bits} | {f"model.{path}": numbers for path, numbers in own.items()}
        name = f"mlx-{bits}-bits-{str(dtype).split('.')[-1]}"
        folder = place / name
        folder.mkdir()
        mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
        (folder / "config.json").write_text(json.dumps({"quantization": section}))
        weights = mx.load(str(folder / "model.safetensors"))
        expected = {key: to_torch(value) for key, value in dequantised(weights, section).items()}
        check_all_formats(report, ours, f"{name} of mlx.nn.quantize", folder, expected)


def dequantised(weights, section):
    """Dequantized by MLX."""
    whole = {}
    for name, value in weights.items():
        module, _, kind = name.rpartition(".")
        if f"{module}.scales" not in weights or kind == "bias":
            whole[name] = value
        elif kind == "weight":
            sides = weights[f"{module}.scales"], weights[f"{module}.biases"]
            numbers = section.get(module, section)
            whole[name] = mx.dequantize(value, *sides, group_size=numbers["group_size"], bits=numbers["bits"])
    return whole


def adapter(place, ours, report):
    scale, rank, base = 2.5, 4, tiny(9)
    folder = place / "mlx-adapter"
    folder.mkdir()
    weights = {}
    for module in ("model.layers.1.self_attn.q_proj", "model.layers.1.mlp.down_proj"):
        outputs, inputs = base.get_submodule(module).weight.shape
        weights[f"{module}.lora_a"] = mx.random.normal((inputs, rank)) * 0.1
        weights[f"{module}.lora_b"] = mx.random.normal((rank, outputs)) * 0.1
    mx.save_safetensors(str(folder / "adapters.safetensors"), weights)
    (folder / "adapter_config.json").write_text(json.dumps({
        "fine_tune_type": "lora", "num_layers": 1, "lora_parameters": {"rank": rank, "scale": scale, "dropout": 0.0},
    }))
    weights = {name: to_torch(value) for name, value in mx.load(str(folder / "adapters.safetensors")).items()}
    with report.check("adapter of mlx → hf → safetensors") as check:
        check.count = same(read_hf(ours.convert(folder, "hf")), weights)
    with report.check("adapter of mlx → peft → peft") as check:
        loaded = PeftModel.from_pretrained(tiny(9), ours.convert(folder, "peft")).eval()
        names = {"lora_a": "lora_A.weight", "lora_b": "lora_B.weight"}
        expected = {}
        for name, weight in weights.items():
            module, _, kind = name.rpartition(".")
            expected[f"base_model.model.{module}.{names[kind]}"] = weight.T
        check.count = same(get_peft_model_state_dict(loaded), expected)
        # The same change of the weights, with another order of additions, so not bit for bit.
        for module in {name.rpartition(".")[0] for name in weights}:
            change = scale * (weights[f"{module}.lora_a"] @ weights[f"{module}.lora_b"]).T
            base.get_submodule(module).weight.data += change
        torch.testing.assert_close(logits(loaded), logits(base))
