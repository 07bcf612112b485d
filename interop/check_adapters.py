"""PEFT adapters, applied at run time and merged."""

import warnings

from peft import LoraConfig, PeftModel, get_peft_model

from logprobs import same_tokens, assert_close, expected, scored, generated
from tiny_models import BUILT_IN, PROMPT, Unfit, unambiguous, fill_adapter, greedy, load, logits, save

ADAPTERS = {
    "LoRA on llama": ("llama", {"target_modules": ["q_proj", "v_proj", "down_proj"]}),
    "LoRA on all of llama, with patterns": ("llama", {
        "target_modules": "all-linear", "rank_pattern": {"up_proj": 2, r"layers\.2\..*\.k_proj": 7},
        "alpha_pattern": {"o_proj": 3}}),
    "LoRA on one layer of llama": ("llama", {"target_modules": ["k_proj", "o_proj"], "layers_to_transform": [2]}),
    "LoRA on llama's embedding": ("llama", {"target_modules": ["embed_tokens", "q_proj"]}),
    "rsLoRA on llama": ("llama", {"target_modules": ["k_proj", "o_proj", "gate_proj"], "use_rslora": True}),
    "DoRA on llama": ("llama", {"target_modules": ["q_proj", "o_proj", "up_proj", "down_proj"], "use_dora": True}),
    "rsDoRA on llama": ("llama", {"target_modules": ["v_proj"], "use_dora": True, "use_rslora": True}),
    "LoRA and modules to save on llama": ("llama", {
        "target_modules": ["q_proj", "v_proj"], "modules_to_save": ["lm_head", "embed_tokens", "input_layernorm"]}),
    "LoRA with biases on qwen2": ("qwen2", {"target_modules": ["q_proj", "v_proj"], "bias": "lora_only"}),
    "LoRA on qwen3_moe": ("qwen3_moe", {"target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}),
    "LoRA on gpt2": ("gpt2", {"target_modules": ["c_attn", "c_fc"], "fan_in_fan_out": True}),
    "rsLoRA on gpt2": ("gpt2", {"target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True, "use_rslora": True}),
    "DoRA on gpt2": ("gpt2", {
        "target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True, "use_dora": True}),
    "LoRA and modules to save on gpt2": ("gpt2", {
        "target_modules": ["c_attn"], "fan_in_fan_out": True, "modules_to_save": ["ln_2", "wpe"]}),
}


def run(place, ours, report):
    for base in sorted({base for base, _ in ADAPTERS.values()}):
        save(unambiguous(*BUILT_IN[base])[0], place / base)
    for name, (base, settings) in ADAPTERS.items():
        with report.check(f"{name}: the adapter changes the output") as check:
            folder = place / name
            chosen = create_adapter(place / base, folder, settings)
            check.of, check.count = "tokens", len(chosen)
        if folder.exists():
            compare(report, ours, name, place / base, folder, chosen)


def create_adapter(base, folder, settings):
    """Saves an adapter; returns the greedy tokens with it, none of which is a near tie."""
    plain = logits(load(base), PROMPT)
    for seed in range(3001, 3200):
        with warnings.catch_warnings(action="ignore"):
            config = LoraConfig(**({"r": 3, "lora_alpha": 5, "task_type": "CAUSAL_LM"} | settings))
            model = get_peft_model(load(base), config).eval()
            fill_adapter(model, seed)
        try:
            chosen = greedy(model, PROMPT)
        except Unfit:
            continue
        assert (logits(model, PROMPT) - plain).abs().max() > 0.1, "the adapter has no effect"
        with warnings.catch_warnings(action="ignore"):
            model.save_pretrained(folder)
        return chosen
    raise Unfit("every prompt has a near tie")


def tuned(base, folder):
    return PeftModel.from_pretrained(load(base), folder).eval()


def compare(report, ours, name, base, folder, chosen):
    adapter = ["--adapter", folder]
    with report.check(f"{name}, unmerged → score → PEFT") as check:
        assert_close(check, scored(ours, base, *adapter), expected(tuned(base, folder)))
    with report.check(f"{name}, merged → score → PEFT") as check:
        assert_close(check, scored(ours, base, *adapter, "--merge"), expected(tuned(base, folder).merge_and_unload()))
    for ranks in (1, 2, 3):
        with report.check(f"{name} → generate on {ranks} ranks → PEFT") as check:
            same_tokens(check, generated(ours, base, *adapter, "--ignore-eos", "--tp", ranks), chosen)
    with report.check(f"{name}, merged → generate on 2 ranks → PEFT") as check:
        same_tokens(check, generated(ours, base, *adapter, "--merge", "--ignore-eos", "--tp", 2), chosen)
    with report.check(f"{name}, half strength → score → PEFT") as check:
        assert_close(check, scored(ours, base, *adapter, "--adapter-scale", 0.5), expected(halfway(base, folder)))
    with report.check(f"{name} → export → transformers, PEFT merged") as check:
        target = folder.with_name(f"{name}, exported")
        ours.call("export", base, target, *adapter)
        merged, loaded = tuned(base, folder).merge_and_unload(), load(target)
        assert_close(check, expected(loaded), expected(merged))
        same_but_for_rounding(loaded.state_dict(), merged.state_dict())


def halfway(base, folder):
    """The mean of the base and the merged weights: strength 0.5 scales everything that an adapter changes."""
    model = load(base)
    merged = tuned(base, folder).merge_and_unload().state_dict()
    model.load_state_dict({name: (value + merged[name]) / 2 for name, value in model.state_dict().items()})
    return model


def same_but_for_rounding(found, wanted):
    """Compares merged weights up to the order of additions."""
    assert found.keys() == wanted.keys(), f"names differ: {sorted(found.keys() ^ wanted.keys())[:6]}"
    for name, tensor in wanted.items():
        away = float((found[name] - tensor).abs().max())
        assert away <= 1e-6 * float(tensor.abs().max()), f"{name} is {away:.1e} away"
