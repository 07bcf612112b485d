"""Models of every family, compared with transformers."""

import copy
import json
import shutil

import torch
from transformers import AutoModelForCausalLM

from check_models import bin_folder
from compare import read_hf, same
from logprobs import same_tokens, assert_close, expected, scored, generated
from tiny_models import (
    BUILT_IN, PLAIN, PROMPT, Unfit, build, unambiguous, fill, load, logits, save, add_tokenizer,
)


def run(place, ours, report):
    models = {}
    for name, (family, settings) in BUILT_IN.items():
        folder = place / name
        models[name] = model, chosen = unambiguous(family, settings)
        save(model, folder)
        check_outputs(report, ours, name, folder, model, chosen)
        check_bf16(report, ours, name, place / f"{name}, bf16", family, settings)
        export(report, ours, name, folder, model)
    for name in ("llama", "qwen3_moe", "gpt2"):
        check_formats(place, report, ours, name, *models[name])
    check_generation_config(place, report, ours, *models["llama"])


def check_outputs(report, ours, name, folder, model, chosen):
    with report.check(f"{name} → score → transformers") as check:
        assert_close(check, scored(ours, folder), expected(model))
    for ranks in (1, 2, 3):
        with report.check(f"{name} → generate on {ranks} ranks → transformers") as check:
            same_tokens(check, generated(ours, folder, "--ignore-eos", "--tp", ranks), chosen)


def check_bf16(report, ours, name, folder, family, settings):
    """Both sides round to bf16 at different places, so each is compared with the f32 result of the same weights: our
    RMS error over all log-probabilities may be at most 1.5 times that of transformers.
    """
    with report.check(f"{name}, bf16 → score → transformers") as check:
        model, exact = rounded(family, settings)
        asked = scored(ours, save(model, folder / "f32"), "--dtype", "bf16")
        theirs = away(expected(model.bfloat16()), exact)
        stored = scored(ours, save(model, folder / "bf16"))
        check.of, check.count = "log-probabilities", stored.numel()
        assert torch.equal(asked, stored), "a model in bf16 is not computed in bf16"
        mine = away(stored, exact)
        assert 0 < mine <= 1.5 * theirs, f"{mine:.1e} from f32, transformers is {theirs:.1e}"


def rounded(family, settings):
    """A model with bf16-exact weights and its f32 output; rounding does not change the choice of experts."""
    for seed in range(2001, 2400):
        model = build(family, settings)
        fill(model, seed)
        model.load_state_dict({name: value.bfloat16().float() for name, value in model.state_dict().items()})
        exact, routes = expected(model), chosen_experts(model)
        if not routes or all(routes == chosen_experts(other) for other in roundings(model)):
            return model, exact
    raise Unfit("every router has a near tie in bf16")


def roundings(model):
    """The model in bf16, and with errors of that size elsewhere: we and transformers round at different places."""
    yield copy.deepcopy(model).bfloat16()
    for seed in range(4):
        generator, other = torch.Generator().manual_seed(seed), copy.deepcopy(model)
        for value in other.parameters():
            error = torch.rand(value.shape, generator=generator) * 2 - 1
            value.data *= 1 + error * torch.finfo(torch.bfloat16).eps / 2
        yield other


def chosen_experts(model):
    routes = []

    def look(module, inputs, outputs):
        if len(outputs) == 3 and not outputs[2].is_floating_point():
            routes.append(outputs[2].sort().values.tolist())
            return
        scores = torch.nn.functional.linear(inputs[0], module.weight)
        routes.append(scores.topk(model.config.num_experts_per_tok).indices.sort().values.tolist())

    hooks = [module.register_forward_hook(look) for module in model.modules() if type(module).__name__.endswith("Router")]
    logits(model, PROMPT)
    for hook in hooks:
        hook.remove()
    return routes


def away(rows, exact):
    return float((rows - exact).square().mean().sqrt())


def export(report, ours, name, folder, model):
    with report.check(f"{name} → export → transformers") as check:
        target = folder.with_name(f"{name}, exported")
        ours.call("export", folder, target)
        check.count = same_logits(target, model)
        assert same(read_hf(target), read_hf(folder)), "the tensors of the file differ"
        assert (target / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
    with report.check(f"{name} → export as bf16 → transformers") as check:
        target = folder.with_name(f"{name}, exported as bf16")
        ours.call("export", folder, target, "--dtype", "bf16")
        expected = {name: tensor.bfloat16() for name, tensor in read_hf(folder).items()}
        check.count = same(read_hf(target), expected)
        loaded = AutoModelForCausalLM.from_pretrained(target)
        assert loaded.dtype == torch.bfloat16, f"the config has {loaded.dtype}"


def same_logits(folder, model):
    """Loads a folder and compares logits bit for bit; returns the number of tensors."""
    loaded = load(folder)
    assert torch.equal(logits(loaded, PROMPT), logits(model, PROMPT)), "logits differ"
    return same(loaded.state_dict(), model.state_dict())


def check_formats(place, report, ours, name, model, chosen):
    """The same model in other formats than a single safetensors file."""
    # From the files: in memory, transformers keeps all experts of a layer in one tensor.
    stored = read_hf(place / name)
    sharded = save(model, place / f"{name}, sharded", max_shard_size="30KB")
    assert len(list(sharded.glob("*.safetensors"))) > 1
    folders = {"sharded safetensors": sharded, "two .bin files": place / f"{name}, bins",
               "one .bin file": place / f"{name}, bin"}
    add_tokenizer(bin_folder(folders["two .bin files"], model, stored))
    folders["one .bin file"].mkdir()
    torch.save(stored, folders["one .bin file"] / "pytorch_model.bin")
    model.config.save_pretrained(add_tokenizer(folders["one .bin file"]))
    for format in ("native", "dcp"):
        folders[format] = ours.convert(place / name, format)
        shutil.copy(place / name / "config.json", add_tokenizer(folders[format]))
    for format, folder in folders.items():
        with report.check(f"{name} in {format} → score → transformers") as check:
            assert_close(check, scored(ours, folder), expected(model))
        with report.check(f"{name} in {format} → generate on 2 ranks → transformers") as check:
            same_tokens(check, generated(ours, folder, "--ignore-eos", "--tp", 2), chosen)
        with report.check(f"{name} in {format} → export → transformers") as check:
            target = folder.with_name(f"{folder.name}, exported")
            ours.call("export", folder, target)
            check.count = same_logits(target, model)


def check_generation_config(place, report, ours, model, chosen):
    """End-of-text tokens and repetition penalty."""
    folder = place / "habits"
    shutil.copytree(place / "llama", folder)
    settings = json.loads((folder / "generation_config.json").read_text())
    # A token that first occurs late in the generation, and one that does not occur.
    ends = [max(chosen, key=chosen.index), min(set(range(101)) - set(chosen))]
    (folder / "generation_config.json").write_text(json.dumps(settings | {"eos_token_id": ends}))
    peer = AutoModelForCausalLM.from_pretrained(folder, **PLAIN).eval()
    with report.check("an EOS token in generation_config.json → generate → transformers") as check:
        theirs = continued(peer)
        assert theirs[-1] == ends[0], "the text does not end"
        same_tokens(check, generated(ours, folder), theirs[:-1])
    for penalty in (1.2, 2.0):
        with report.check(f"repetition penalty {penalty} → generate → transformers") as check:
            theirs = continued(peer, repetition_penalty=penalty, eos_token_id=None)
            assert theirs != chosen, "the penalty changes nothing"
            same_tokens(check, generated(ours, folder, "--ignore-eos", "--repetition-penalty", penalty), theirs)


def continued(model, **settings):
    tokens = torch.tensor([PROMPT])
    made = model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=32, do_sample=False,
                          pad_token_id=0, **settings)
    return made[0, len(PROMPT):].tolist()
