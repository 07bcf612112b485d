"""GGUF files written by llama.cpp's Python package."""

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from transformers import AutoModelForCausalLM

from check_models import tiny
from compare import check_all_formats, read_hf, same


def run(place, ours, report):
    unknown_names(place, ours, report)
    llama(place, ours, report)


def unknown_names(place, ours, report):
    """An unknown architecture, for which names and rows stay unchanged."""
    generator = np.random.default_rng(1)
    path = place / "kinds.gguf"
    writer = gguf.GGUFWriter(path, "starfish")
    for kind in (Kind.F32, Kind.F16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1):
        add(writer, f"{kind.name}.weight", generator.standard_normal((6, 96), np.float32), kind)
    finish(writer)
    expected = {}
    for tensor in gguf.GGUFReader(path).tensors:
        kept = tensor.tensor_type in (Kind.F32, Kind.F16)
        values = tensor.data if kept else gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        expected[tensor.name] = torch.from_numpy(np.array(values))
    check_all_formats(report, ours, "gguf", path, expected)


def llama(place, ours, report):
    """A Llama model in llama.cpp's layout, read by transformers and by us."""
    model = tiny(1, intermediate_size=96, vocab_size=64)
    folder = place / "llama"
    folder.mkdir()
    write_llama(folder / "model.gguf", model, lambda name: Kind.Q4_0 if "mlp" in name else Kind.Q8_0)
    with report.check("gguf of llama → hf → transformers' GGUF reader") as check:
        peer = AutoModelForCausalLM.from_pretrained(folder, gguf_file="model.gguf", dtype=torch.float32)
        check.count = same(read_hf(ours.convert(folder / "model.gguf", "hf")), peer.state_dict())


def write_llama(path, model, kind, add_words=lambda writer: None):
    """Quantizes matrices to `kind(name)`; vectors stay in f32."""
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    add_words(writer)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        stored = names.get_name(name, try_suffixes=(".weight",))
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
        add(writer, stored, interleaved(weight.numpy(), heads), Kind.F32 if weight.ndim == 1 else kind(name))
    finish(writer)


def interleaved(weight, heads):
    """Permutes the rows of queries and keys as llama.cpp's converter does: the halves of a head are interleaved."""
    if heads is None:
        return weight
    return weight.reshape(heads, 2, -1, weight.shape[-1]).swapaxes(1, 2).reshape(weight.shape)


def add(writer, name, values, kind):
    if kind == Kind.F32:
        writer.add_tensor(name, np.ascontiguousarray(values))
    elif kind == Kind.F16:
        writer.add_tensor(name, values.astype(np.float16))
    else:
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
