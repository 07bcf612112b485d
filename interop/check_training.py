"""Training: the same steps as torch takes, and what is left behind as transformers, PEFT and TensorBoard read it."""

import json
import warnings

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ours import output
from said import close, expected, scored
from tiny import BUILT_IN, build, fill, fill_adapter, load, save, text

ROWS, WIDTH = 4, 24
RATE, DECAY, BETAS, EPS, NORM = 0.003, 0.1, (0.9, 0.95), 1e-8, 1.0
# What the order of additions changes grows with the steps: it is 1e-6 after the first.
FIRST, LATER = 1e-4, 1e-3
END = 2


def documents():
    """Tokens of documents of several lengths, all shorter than a row."""
    generator = torch.Generator().manual_seed(77)
    lengths = [5, 23, 9, 17, 12, 20, 8, 15, 11, 22, 6]
    return [torch.randint(3, 101, (length,), generator=generator).tolist() for length in lengths]


def batches(steps):
    """What each step sees, in order: inputs and targets, filled up behind the ends of documents."""
    rows = documents()
    for step in range(steps):
        inputs, targets = torch.zeros(ROWS, WIDTH, dtype=torch.long), torch.full((ROWS, WIDTH), -100)
        for row in range(ROWS):
            tokens = torch.tensor(rows[(step * ROWS + row) % len(rows)] + [END])
            inputs[row, :len(tokens) - 1] = tokens[:-1]
            targets[row, :len(tokens) - 1] = tokens[1:]
        yield inputs, targets


def loss_of(model, inputs, targets):
    said = model(inputs, use_cache=False).logits.float()
    return torch.nn.functional.cross_entropy(said.flatten(0, 1), targets.flatten(), ignore_index=-100)


def trained(model, steps):
    """The losses of training in torch, as its users write it, but without dropout."""
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


def run_file(place, base, name, steps, family="llama", **more):
    """A run's file as JSON, which is YAML."""
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
    """Trains; returns the checkpoint's folder and what the metrics say."""
    said = output([ours.weightloom, "--json", "train", str(file), *map(str, options)])
    ended = json.loads(said.splitlines()[-1])
    assert ended["end"] == "finished", ended
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return ended["checkpoint"], lines


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
    adapters(place, ours, report)


def weights(place, ours, report):
    base, steps = place / "llama", 50
    wanted = trained(load(base), steps)
    assert wanted[-1] < wanted[0] - 0.5, "nothing was learnt"
    for name, options in {"1 rank": [], "2 ranks": ["--ranks", 2],
                          "3 ranks, tp": ["--ranks", 3, "train.accelerator.tp=3"],
                          "2 stages": ["--ranks", 2, "train.accelerator.pp=2"]}.items():
        file, folder = run_file(place, base, f"weights on {name}", steps)
        with report.check(f"{steps} steps on {name} → torch") as check:
            checkpoint, lines = train(ours, file, folder, *options)
            same_losses(check, lines, wanted, LATER)
    with report.check("a run's checkpoint → transformers") as check:
        close(check, scored(ours, checkpoint), expected(load(checkpoint)))
    with report.check("a run's events → TensorBoard") as check:
        check.of, check.count = "values", same_events(folder / "tensorboard", lines)


def other_models(place, ours, report):
    base, steps = place / "gpt2", 20
    wanted = trained(load(base), steps)
    file, folder = run_file(place, base, "gpt2", steps, family="gpt2")
    with report.check(f"{steps} steps of gpt2 → torch") as check:
        checkpoint, lines = train(ours, file, folder)
        same_losses(check, lines, wanted, LATER)
    with report.check("gpt2's checkpoint → export → transformers") as check:
        ours.call("export", checkpoint, place / "gpt2-published")
        close(check, scored(ours, checkpoint), expected(load(place / "gpt2-published")))


def same_events(folder, lines):
    """Compares event files as TensorBoard reads them with the lines of JSON; how many values there were."""
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    names = {"loss", "learning_rate", "gradient_norm", "tokens", "epoch"}
    assert {f"train/{name}" for name in names} <= set(events.Tags()["scalars"]), events.Tags()
    count = 0
    for name in names:
        found = [(event.step, event.value) for event in events.Scalars(f"train/{name}")]
        # Event files hold numbers of 32 bits.
        wanted = [(line["step"], float(torch.tensor(line[name], dtype=torch.float32))) for line in lines]
        assert found == wanted, f"{name}: {found[:3]} is not {wanted[:3]}"
        count += len(found)
    return count


def adapters(place, ours, report):
    base = place / "llama"
    lora = {"rank": 3, "alpha": 7, "target_modules": ["q_proj", "v_proj", "up_proj", "down_proj"]}
    for name, options in {"LoRA": {}, "rsLoRA": {"use_rslora": True}}.items():
        file, folder = run_file(place, base, name, 12, lora=lora | options)
        with report.check(f"{name} trained on 2 ranks → PEFT") as check:
            checkpoint, _ = train(ours, file, folder, "--ranks", 2)
            tuned = PeftModel.from_pretrained(load(base), checkpoint).eval()
            assert (expected(tuned) - expected(load(base))).abs().max() > 0.01, "it does nothing"
            close(check, scored(ours, base, "--adapter", checkpoint), expected(tuned))
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
            file, folder = run_file(place, base, f"further-{name}", 20, lora={"adapter_path": str(made)})
            checkpoint, lines = train(ours, file, folder)
            same_losses(check, lines, trained(model, 20), LATER)
        with report.check(f"PEFT's {name} trained further → PEFT") as check:
            close(check, scored(ours, base, "--adapter", checkpoint),
                  expected(PeftModel.from_pretrained(load(base), checkpoint).eval()))
