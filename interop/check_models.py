"""Models saved by transformers and adapters saved by PEFT."""

import json

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig

from compare import check_all_formats, plain, read_hf, same, write

TOKENS = torch.arange(12).reshape(2, 6) * 7 % 131


def tiny(seed, dtype=torch.float32, **changes):
    torch.manual_seed(seed)
    # Sizes that no mesh divides evenly, where the architecture allows it.
    sizes = {"vocab_size": 131, "hidden_size": 64, "intermediate_size": 97, "num_hidden_layers": 2,
             "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False}
    return AutoModelForCausalLM.from_config(LlamaConfig(**(sizes | changes)), dtype=dtype).eval()


def logits(model):
    with torch.no_grad():
        return model(TOKENS).logits


def same_logits(folder, model):
    """Loads a folder and compares logits; returns the number of tensors."""
    loaded, info = AutoModelForCausalLM.from_pretrained(folder, dtype=model.dtype, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    assert torch.equal(logits(loaded.eval()), logits(model)), "logits differ"
    return same(loaded.state_dict(), model.state_dict())


def run(place, ours, report):
    written_by_us(place, ours, report)
    written_by_transformers(place, ours, report)
    adapters(place, ours, report)


def written_by_us(place, ours, report):
    for name, model in {"f32": tiny(1), "bf16": tiny(2, torch.bfloat16)}.items():
        weights = model.state_dict()
        moments = {f"optimizer.exp_avg.{name}": torch.randn_like(weight) for name, weight in weights.items()}
        tensors = write(place / f"{name}.safetensors", weights | moments)
        saved = {"training": "optimizer.", "values": {"step": 3}, "assets": {"config.json": model.config.to_json_string()}}
        for kind, size in {"one file": 10**9, "several files": 40_000}.items():
            folder = place / f"{name}-{size}"
            with report.check(f"native {name} in {kind}, saved by 4 ranks → transformers") as check:
                ours.ranks("native", folder, tensors, "mesh(dp=2, tp=2)", shard_size=size, **saved)
                assert (folder / "model.safetensors.index.json").exists() == (kind == "several files")
                check.count = same_logits(folder, model)
            with report.check(f"native {name} in {kind}, saved by 4 ranks → 3 ranks") as check:
                check.count = ours.ranks("load", folder, tensors, "mesh(a=3)", values=saved["values"])
            with report.check(f"native {name} in {kind} → hf → transformers") as check:
                plain_folder = ours.convert(folder, "hf", "--shard-size", f"{size}B")
                assert not list(plain_folder.glob("training*")) and not (plain_folder / "weightloom.json").exists()
                check.count = same_logits(plain_folder, model)


def written_by_transformers(place, ours, report):
    models = {"f32": tiny(3), "bf16": tiny(4, torch.bfloat16), "tied": tiny(5, tie_word_embeddings=True)}
    for name, model in models.items():
        folder = place / f"save_pretrained-{name}"
        model.save_pretrained(folder, max_shard_size="60KB")
        assert len(list(folder.glob("*.safetensors"))) > 1
        check_all_formats(report, ours, f"transformers save_pretrained of {name}, sharded", folder, read_hf(folder))
        with report.check(f"transformers save_pretrained of {name} → hf → transformers") as check:
            check.count = same_logits(folder.with_name(f"{folder.name}.to-hf"), model)
    model = tiny(6, torch.float16)
    folder = bin_folder(place / "bin", model)
    check_all_formats(report, ours, "pytorch_model.bin in two files", folder, plain(model.state_dict()))
    with report.check("pytorch_model.bin in two files → hf → transformers") as check:
        check.count = same_logits(folder.with_name("bin.to-hf"), model)


def bin_folder(folder, model, weights=None):
    folder.mkdir()
    weights = list((weights or model.state_dict()).items())
    half, names = len(weights) // 2, {}
    for number, shard in enumerate((weights[:half], weights[half:]), 1):
        file = f"pytorch_model-{number:05}-of-00002.bin"
        torch.save(dict(shard), folder / file)
        names |= dict.fromkeys(dict(shard), file)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    model.config.save_pretrained(folder)
    return folder


def adapters(place, ours, report):
    torch.manual_seed(7)
    chosen = LoraConfig(r=4, lora_alpha=6, target_modules=["q_proj", "down_proj"], init_lora_weights=False,
                        task_type="CAUSAL_LM")
    model = get_peft_model(tiny(8), chosen).eval()
    folder = place / "peft"
    model.save_pretrained(folder)
    expected = load_file(folder / "adapter_model.safetensors")
    check_all_formats(report, ours, "peft save_pretrained", folder, expected)
    with report.check("peft save_pretrained → peft → peft") as check:
        target = ours.convert(folder, "peft")
        check.count = same(load_file(target / "adapter_model.safetensors"), expected)
        loaded = PeftModel.from_pretrained(tiny(8), target).eval()
        assert torch.equal(logits(loaded), logits(model)), "logits differ"
