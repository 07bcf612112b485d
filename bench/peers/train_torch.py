"""PyTorch and peft peer of benches/train.rs: training steps in one process, printed as a JSON object.

    train_torch.py {full,lora} FOLDER --dtype float32|bfloat16 [--pure] [--threads 2] [--steps 5]

Batches of 4 rows of 128 tokens, AdamW, gradient clipping at 1. In bfloat16, a full step uses autocast with float32
weights, and a LoRA step has a bfloat16 base with float32 matrices, as is peft's default; `--pure` keeps everything in
bfloat16. `seconds` is the median of the steps after the first two, `peak` the peak resident size.
"""

import argparse
import contextlib
import json
import statistics
import time
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj"]


def peak():
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return next(int(words[1]) * 1024 for words in lines if words[0] == "VmHWM:")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=["full", "lora"])
    parser.add_argument("folder")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--pure", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    arguments = parser.parse_args()

    import torch
    import transformers

    torch.set_num_threads(arguments.threads)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    half = arguments.dtype == "bfloat16"
    held = torch.bfloat16 if half and (arguments.pure or arguments.case == "lora") else torch.float32
    model = transformers.AutoModelForCausalLM.from_pretrained(
        arguments.folder, dtype=held, attn_implementation="sdpa"
    )
    model.config.use_cache = False
    if arguments.case == "lora":
        import peft

        config = peft.LoraConfig(r=8, lora_alpha=16, target_modules=TARGETS, task_type="CAUSAL_LM")
        model = peft.get_peft_model(model, config)
    model.train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1)
    vocabulary = model.config.vocab_size
    tokens = torch.tensor([[(7919 * (row * 128 + place) + 13) % vocabulary for place in range(129)] for row in range(4)])
    autocast = half and not arguments.pure and arguments.case == "full"
    times, losses = [], []
    for _ in range(arguments.steps + 2):
        begin = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16) if autocast else contextlib.nullcontext():
            logits = model(input_ids=tokens[:, :-1]).logits
            loss = torch.nn.functional.cross_entropy(logits.float().reshape(-1, vocabulary), tokens[:, 1:].reshape(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        times.append(time.perf_counter() - begin)
        losses.append(loss.item())
    print(json.dumps({"seconds": statistics.median(times[2:]), "peak": peak(), "losses": losses}), flush=True)


main()
