"""dlm-sway peer of benches/sway.rs: one step per process, printed as a JSON object.

    sway_dlm.py make BASE ADAPTER                               create a LoRA adapter with random weights
    sway_dlm.py encoder FOLDER SUITE                            create a sentence encoder with random weights
    sway_dlm.py run BASE ADAPTER ENCODER SUITE [--threads 2]    run the suite

`seconds` covers loading and all probes, `peak` is the peak resident size, `probes` has the time of each probe, and
`skipped` lists probes that lack a package.
"""

import argparse
import json
import os
import re
import time
import warnings
from pathlib import Path

os.environ |= {"SWAY_DISABLE_NULL_CACHE": "1", "HF_HUB_OFFLINE": "1"}
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


def encoder(folder, suite):
    """The shapes of all-MiniLM-L6-v2, with a vocabulary from the suite."""
    import torch
    import transformers
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    letters = [chr(code) for code in range(33, 127)]
    words = {word.lower() for word in re.findall(r"\w+", Path(suite).read_text())}
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *letters, *("##" + letter for letter in letters)]
    pieces += sorted(words - set(pieces))
    tokenizer = Tokenizer(models.WordPiece({piece: at for at, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    named = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named).save_pretrained(folder)
    torch.manual_seed(2)
    config = transformers.BertConfig(
        vocab_size=30522, hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
    )
    transformers.BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    (Path(folder) / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 256}))
    print(json.dumps({"made": folder}))


def run(base, adapter, encoder, suite, threads):
    import torch
    from dlm_sway.backends.hf import HuggingFaceDifferentialBackend
    from dlm_sway.core.model import ModelSpec
    from dlm_sway.core.sections import Section, SectionPreference, SectionProbe
    from dlm_sway.suite import runner, score
    from dlm_sway.suite.loader import from_dict

    torch.set_num_threads(threads)
    given = json.loads(Path(suite).read_text())
    for entry in given["suite"]:
        if entry["kind"] in ("adapter_revert", "cluster_kl"):
            entry["embedding_model"] = encoder
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
    parser.add_argument("case", choices=["make", "encoder", "run"])
    parser.add_argument("paths", nargs="+")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.case == "run":
        run(*arguments.paths, arguments.threads)
    else:
        {"make": make, "encoder": encoder}[arguments.case](*arguments.paths)


main()
