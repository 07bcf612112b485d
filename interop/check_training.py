"""Training steps compared with torch, and outputs read by transformers, PEFT and TensorBoard."""

import json
import warnings

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from weightloom_cli import output
from logprobs import assert_close, expected, scored
from tiny_models import BUILT_IN, build, fill, fill_adapter, load, save, text

ROWS, WIDTH = 4, 24
RATE, DECAY, BETAS, EPS, NORM = 0.003, 0.1, (0.9, 0.95), 1e-8, 1.0
# The effect of the order of additions grows with the steps: it is 1e-6 after the first.
FIRST, LATER = 1e-4, 1e-3
END = 2


def documents():
    """Token sequences of several lengths, all shorter than a row."""
    generator = torch.Generator().manual_seed(77)
    lengths = [5, 23, 9, 17, 12, 20, 8, 15, 11, 22, 6]
    return [torch.randint(3, 101, (length,), generator=generator).tolist() for length in lengths]


def batches(steps):
    """Inputs and targets of each step, padded after the end of each document."""
    rows = documents()
    for step in range(steps):
        inputs, targets = torch.zeros(ROWS, WIDTH, dtype=torch.long), torch.full((ROWS, WIDTH), -100)
        for row in range(ROWS):
            tokens = torch.tensor(rows[(step * ROWS + row) % len(rows)] + [END])
            inputs[row, :len(tokens) - 1] = tokens[:-1]
            targets[row, :len(tokens) - 1] = tokens[1:]
        yield inputs, targets


def loss_of(model, inputs, targets):
    logits = model(inputs, use_cache=False).logits.float()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)


def trained(model, steps):
    """Losses of a usual training loop in torch, without dropout."""
    model.eval()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [{"params": [one for one in parameters if one.ndim > 1], "weight_decay": DECAY},
              {"params": [one for one in parameters if one.ndim < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=BETAS, eps=EPS)
    losses = []
    for inputs, targets in batches(steps):
        optimizer.zero_grad()
        loss = loss_of(model, inputs, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, NORM)
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def write_config(place, base, name, steps, family="llama", **more):
    """Writes a config as JSON, which is valid YAML."""
    data = place / "documents.jsonl"
    data.write_text("".join(json.dumps({"text": text(tokens)}) + "\n" for tokens in documents()))
    folder = place / f"run-{name}"
    config = {
        "model": {"name": family, "weights_path": str(base)} | more,
        "data": {"paths": [str(data)], "packing": False, "max_seq_len": WIDTH, "shuffle": False},
        "train": {
            "max_steps": steps, "global_batch_size": ROWS, "schedule": {"kind": "constant"},
            "optimizer": {"lr": RATE, "betas": list(BETAS), "eps": EPS, "weight_decay": DECAY, "max_grad_norm": NORM},
            "checkpoint": {"output_dir": str(folder)},
        },
    }
    file = place / f"{name}.yaml"
    file.write_text(json.dumps(config))
    return file, folder


def train(ours, file, folder, *options):
    """Trains; returns the folder of the checkpoint and the metrics."""
    printed = output([ours.weightloom, "--json", "train", str(file), *map(str, options)])
    result = json.loads(printed.splitlines()[-1])
    assert result["end"] == "finished", result
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return result["checkpoint"], [line for line in lines if "event" not in line]


def same_losses(check, lines, wanted, tolerance):
    found = [line["loss"] for line in lines]
    check.of, check.count = "losses", len(wanted)
    assert len(found) == len(wanted), f"{len(found)} losses instead of {len(wanted)}"
    away = max(abs(one - other) for one, other in zip(found, wanted))
    assert away <= tolerance, f"losses are {away:.1e} apart: {found} is not {wanted}"
    assert abs(found[0] - wanted[0]) <= FIRST, f"the first loss is {found[0]}, not {wanted[0]}"


def run(place, ours, report):
    for family in ("llama", "gpt2"):
        model = build(*BUILT_IN[family])
        fill(model, 4001)
        save(model, place / family)
    weights(place, ours, report)
    other_models(place, ours, report)
    every_family(place, ours, report)
    adapters(place, ours, report)


def weights(place, ours, report):
    base, steps = place / "llama", 50
    wanted = trained(load(base), steps)
    assert wanted[-1] < wanted[0] - 0.5, "the loss did not fall"
    for name, options in {"1 rank": [], "2 ranks": ["--ranks", 2],
                          "3 ranks, tp": ["--ranks", 3, "train.accelerator.tp=3"],
                          "2 stages": ["--ranks", 2, "train.accelerator.pp=2"]}.items():
        file, folder = write_config(place, base, f"weights on {name}", steps)
        with report.check(f"{steps} steps on {name} → torch") as check:
            checkpoint, lines = train(ours, file, folder, *options)
            same_losses(check, lines, wanted, LATER)
    with report.check("the checkpoint → transformers") as check:
        assert_close(check, scored(ours, checkpoint), expected(load(checkpoint)))
    with report.check("the event files → TensorBoard") as check:
        check.of, check.count = "values", same_events(folder / "tensorboard", lines)


def other_models(place, ours, report):
    base, steps = place / "gpt2", 20
    wanted = trained(load(base), steps)
    file, folder = write_config(place, base, "gpt2", steps, family="gpt2")
    with report.check(f"{steps} steps of gpt2 → torch") as check:
        checkpoint, lines = train(ours, file, folder)
        same_losses(check, lines, wanted, LATER)
    with report.check("gpt2's checkpoint → export → transformers") as check:
        ours.call("export", checkpoint, place / "gpt2-published")
        assert_close(check, scored(ours, checkpoint), expected(load(place / "gpt2-published")))


def every_family(place, ours, report):
    """Transformers loads what training saved, with no name too many or too few, and computes the same. Ranks that
    hold parts of fused and stacked weights save them whole.
    """
    for number, (name, (family, settings)) in enumerate(BUILT_IN.items()):
        model = build(family, settings)
        fill(model, 6001)
        base = save(model, place / f"base of {name}")
        file, folder = write_config(place, base, f"family {number}", 2, family=family)
        options = [["--ranks", 1], ["--ranks", 4, "train.accelerator={tp: 2, dp_shard: 2}"]][number % 2]
        with report.check(f"{name}, trained on {options[1]} ranks → transformers") as check:
            checkpoint, _ = train(ours, file, folder, *options)
            loaded = load(checkpoint)
            assert (expected(loaded) - expected(model)).abs().max() > 1e-3, "training changed nothing"
            assert_close(check, scored(ours, checkpoint), expected(loaded))


def same_events(folder, lines):
    """Compares event files, as TensorBoard reads them, with the JSON metrics; returns the number of values."""
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    names = {"loss", "learning_rate", "gradient_norm", "tokens", "epoch"}
    assert {f"train/{name}" for name in names} <= set(events.Tags()["scalars"]), events.Tags()
    count = 0
    for name in names:
        found = [(event.step, event.value) for event in events.Scalars(f"train/{name}")]
        # Event files hold 32-bit floats.
        wanted = [(line["step"], float(torch.tensor(line[name], dtype=torch.float32))) for line in lines]
        assert found == wanted, f"{name}: {found[:3]} is not {wanted[:3]}"
        count += len(found)
    return count


def adapters(place, ours, report):
    base = place / "llama"
    lora = {"rank": 3, "alpha": 7, "target_modules": ["q_proj", "v_proj", "up_proj", "down_proj"]}
    for name, options in {"LoRA": {}, "rsLoRA": {"use_rslora": True}}.items():
        file, folder = write_config(place, base, name, 12, lora=lora | options)
        with report.check(f"{name} trained on 2 ranks → PEFT") as check:
            checkpoint, _ = train(ours, file, folder, "--ranks", 2)
            tuned = PeftModel.from_pretrained(load(base), checkpoint).eval()
            assert (expected(tuned) - expected(load(base))).abs().max() > 0.01, "the adapter has no effect"
            assert_close(check, scored(ours, base, "--adapter", checkpoint), expected(tuned))
    for name, settings in {
        "LoRA": {"target_modules": ["q_proj", "v_proj"]},
        "rsLoRA": {"target_modules": ["k_proj", "gate_proj"], "use_rslora": True},
    }.items():
        with report.check(f"PEFT's {name} trained further → torch") as check:
            made = place / f"peft-{name}"
            with warnings.catch_warnings(action="ignore"):
                model = get_peft_model(load(base), LoraConfig(r=5, lora_alpha=6, task_type="CAUSAL_LM", **settings))
                fill_adapter(model, 5001)
                trained(model, 3)
                model.save_pretrained(made)
            file, folder = write_config(place, base, f"further-{name}", 20, lora={"adapter_path": str(made)})
            checkpoint, lines = train(ours, file, folder)
            same_losses(check, lines, trained(model, 20), LATER)
        with report.check(f"PEFT's {name} trained further → PEFT") as check:
            assert_close(check, scored(ours, base, "--adapter", checkpoint),
                  expected(PeftModel.from_pretrained(load(base), checkpoint).eval()))
