"""Small models and their state on meshes, with values that every process can compute for itself."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh

# Neither number of heads, vocabulary nor intermediate size is a multiple of four but where tensor parallelism needs it.
CONFIG = {
    "vocab_size": 91,
    "hidden_size": 32,
    "intermediate_size": 44,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def config(*, tied: bool = False) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(**CONFIG, tie_word_embeddings=tied, attn_implementation="eager")


def llama(*, tied: bool = False, dtype: str = "float32") -> torch.nn.Module:
    """A model whose parameters are the expected ones."""
    import torch
    from transformers import LlamaForCausalLM

    model: torch.nn.Module = LlamaForCausalLM(config(tied=tied)).to(getattr(torch, dtype))
    fill(model.state_dict())
    return model


def expected(name: str, shape: Any, dtype: torch.dtype) -> torch.Tensor:
    """The values of a tensor of this name."""
    import torch

    if name.endswith("lm_head.weight"):
        name = name.replace("lm_head.weight", "model.embed_tokens.weight")
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return torch.randn(tuple(shape), generator=generator).to(dtype)


def fill(state: dict[str, Any], prefix: str = "") -> None:
    """Gives all tensors of a nested state dict their expected values."""
    import torch
    from torch.distributed.tensor import DTensor, distribute_tensor

    for name, tensor in tensors_of(state, prefix).items():
        full = expected(name, tensor.shape, tensor.dtype)
        if isinstance(tensor, DTensor):
            part = distribute_tensor(full, tensor.device_mesh, tensor.placements, src_data_rank=None)
            tensor._local_tensor.copy_(part._local_tensor)
        else:
            with torch.no_grad():
                tensor.copy_(full)


def clear(state: dict[str, Any]) -> None:
    """Overwrites all tensors of a nested state dict."""
    import torch
    from torch.distributed.tensor import DTensor

    with torch.no_grad():
        for tensor in tensors_of(state).values():
            (tensor._local_tensor if isinstance(tensor, DTensor) else tensor).fill_(7)


def tensors_of(state: Any, prefix: str = "") -> dict[str, Any]:
    """All tensors of a nested state dict, by dotted names."""
    import torch

    if isinstance(state, torch.Tensor):
        return {prefix: state}
    children = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list) else ()
    found: dict[str, Any] = {}
    for key, child in children:
        found |= tensors_of(child, f"{prefix}.{key}" if prefix else str(key))
    return found


def differences(state: dict[str, Any], prefix: str = "") -> list[str]:
    """The names of tensors that do not have the bits of the expected values."""
    import torch
    from torch.distributed.tensor import DTensor, distribute_tensor

    wrong = []
    for name, tensor in tensors_of(state, prefix).items():
        full = expected(name, tensor.shape, tensor.dtype)
        if isinstance(tensor, DTensor):
            part = distribute_tensor(full, tensor.device_mesh, tensor.placements, src_data_rank=None)
            same = bits_equal(tensor._local_tensor, part._local_tensor)
        else:
            same = bits_equal(tensor.detach(), full)
        if not same:
            wrong.append(name)
    return wrong


def bits_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors have the same dtype, shape and bits."""
    import torch

    def bits(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.contiguous().reshape(-1).view(torch.uint8)

    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(bits(a), bits(b))


def fsdp(mesh: DeviceMesh, *, tied: bool = False) -> torch.nn.Module:
    """A model under FSDP2."""
    from torch.distributed.fsdp import fully_shard

    model: Any = llama(tied=tied)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model  # type: ignore[no-any-return]


def tensor_parallel(mesh: DeviceMesh) -> torch.nn.Module:
    """A model under tensor parallelism."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model: Any = llama()
    columns = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
    plan: dict[str, Any] = {f"model.layers.*.{name}": ColwiseParallel() for name in columns}
    plan |= {f"model.layers.*.{name}": RowwiseParallel() for name in ("self_attn.o_proj", "mlp.down_proj")}
    # 91 rows are not divided evenly.
    plan |= {"model.embed_tokens": RowwiseParallel(), "lm_head": ColwiseParallel()}
    return parallelize_module(model, mesh, plan)


def fsdp_of_tensor_parallel(mesh: DeviceMesh) -> torch.nn.Module:
    """A model under tensor parallelism, and FSDP2 on top, whose shards are strided."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model: Any = llama()
    columns = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
    plan: dict[str, Any] = {f"model.layers.*.{name}": ColwiseParallel() for name in columns}
    plan |= {f"model.layers.*.{name}": RowwiseParallel() for name in ("self_attn.o_proj", "mlp.down_proj")}
    parallelize_module(model, mesh["tp"], plan)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    return model  # type: ignore[no-any-return]


def stepped(model: torch.nn.Module) -> torch.optim.Optimizer:
    """An AdamW optimizer whose state has been made. The parameters keep their values."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, betas=(0.9, 0.95), weight_decay=0.0)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    for group in optimizer.param_groups:
        group["lr"] = 3e-4
    return optimizer
