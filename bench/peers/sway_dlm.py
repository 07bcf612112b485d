"""dlm-sway: a suite in one process, one JSON object as the answer.

    sway_dlm.py make BASE ADAPTER                       a LoRA adapter with random matrices
    sway_dlm.py run BASE ADAPTER SUITE [--threads 2]    the suite

`seconds` covers loading and all probes, `peak` is the highest resident size, `probes` has each probe's time, and
`skipped` those that were not run for want of a package.
"""

import argparse
import json
import os
import time
import warnings
from pathlib import Path

os.environ["SWAY_DISABLE_NULL_CACHE"] = "1"
warnings.filterwarnings("ignore")


def peak():
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return next(int(words[1]) * 1024 for words in lines if words[0] == "VmHWM:")


def make(base, adapter):
    import peft
    import torch
    import transformers

    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
    model = peft.get_peft_model(model, peft.LoraConfig(r=8, lora_alpha=16, target_modules=targets, task_type="CAUSAL_LM"))
    for name, value in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(value, std=0.02)
    model.save_pretrained(adapter)
    print(json.dumps({"made": adapter}))


def run(base, adapter, suite, threads):
    import torch
    from dlm_sway.backends.hf import HuggingFaceDifferentialBackend
    from dlm_sway.core.model import ModelSpec
    from dlm_sway.core.sections import Section, SectionPreference, SectionProbe
    from dlm_sway.suite import runner, score
    from dlm_sway.suite.loader import from_dict

    torch.set_num_threads(threads)
    given = json.loads(Path(suite).read_text())
    sections = tuple(
        Section(
            id=one["id"],
            kind=one["kind"],
            content=one["content"],
            probes=tuple(SectionProbe(q["prompt"], q["gold"]) for q in one.get("questions", [])),
            preferences=tuple(
                SectionPreference(p["prompt"], p["chosen"], p["rejected"]) for p in one.get("preferences", [])
            ),
        )
        for one in given["sections"]
    )
    text = "\n\n".join(one["content"] for one in given["sections"])
    side = {"base": base, "dtype": "fp32", "device": "cpu"}
    spec = from_dict({"models": {"base": side, "ft": {**side, "adapter": adapter}}, "suite": given["suite"]})
    started = time.perf_counter()
    backend = HuggingFaceDifferentialBackend(
        base_spec=ModelSpec(base=base, device="cpu", dtype="fp32"), adapter_path=Path(adapter)
    )
    result = runner.run(spec, backend, sections=sections, doc_text=text)
    seconds = time.perf_counter() - started
    answer = {
        "seconds": seconds,
        "peak": peak(),
        "probes": {probe.name: probe.duration_s for probe in result.probes},
        "raw": {probe.name: probe.raw for probe in result.probes},
        "skipped": [probe.name for probe in result.probes if str(probe.verdict).endswith(("skip", "SKIP"))],
        "overall": score.compute(result).overall,
    }
    print(json.dumps(answer))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=["make", "run"])
    parser.add_argument("base")
    parser.add_argument("adapter")
    parser.add_argument("suite", nargs="?")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.case == "make":
        make(arguments.base, arguments.adapter)
    else:
        run(arguments.base, arguments.adapter, arguments.suite, arguments.threads)


main()
