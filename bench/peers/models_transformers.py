"""Transformers peer of benches/models.rs: one measurement per process, printed as a JSON object.

    models_transformers.py {first-token,load,read,score,decode} FOLDER [--dtype float32|bfloat16] [--threads 2] [--runs 5]

`first-token`: seconds from process start to the first token, and to each stage before it.
`load`: `from_pretrained`, then a read of every page of the weights, which are memory-mapped; memory after each.
`read`: `safetensors.torch.load_file`, then a copy of every tensor.
`score`: tokens per second of the logits of 256 tokens.
`decode`: tokens per second of 64 greedy tokens with a KV cache after a prompt of 32.

Memory is in bytes: `peak` is the peak resident size (VmHWM), including mapped pages of files; `own` is the anonymous
resident memory (RssAnon).
"""

import argparse
import json
import os
import statistics
import time
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")


def since_start():
    """Seconds since the start of this process, before any Python code ran; precise to 10 ms."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")


def memory():
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    found = {words[0]: int(words[1]) * 1024 for words in lines if words[0] in ("VmHWM:", "RssAnon:")}
    return {"peak": found["VmHWM:"], "own": found["RssAnon:"]}


def answer(case, **found):
    given = {"peer": "transformers", "case": case, "folder": arguments.folder, "dtype": arguments.dtype}
    print(json.dumps(given | {"threads": arguments.threads} | found), flush=True)


def import_torch():
    import torch

    torch.set_num_threads(arguments.threads)
    return torch


def from_pretrained():
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    kind = transformers.AutoModelForCausalLM
    begin = time.perf_counter()
    model = kind.from_pretrained(
        arguments.folder, dtype=arguments.dtype, attn_implementation=arguments.attention
    ).eval()
    return model, time.perf_counter() - begin


def prompt(torch, model, length):
    return torch.tensor([[(7919 * position + 13) % model.config.vocab_size for position in range(length)]])


def touch(tensors):
    """Reads one element of each page of every tensor."""
    begin = time.perf_counter()
    for tensor in tensors:
        tensor.view(-1)[:: max(1, 4096 // tensor.element_size())].sum()
    return time.perf_counter() - begin


def first_token():
    stages = {"python": since_start()}
    torch = import_torch()
    stages["torch"] = since_start()
    from transformers import AutoModelForCausalLM

    assert AutoModelForCausalLM
    stages["transformers"] = since_start()
    model, _ = from_pretrained()
    stages["loaded"] = since_start()
    with torch.inference_mode():
        token = int(model(prompt(torch, model, 32)).logits[0, -1].argmax())
    stages["first_token"] = since_start()
    answer("first-token", stages=stages, token=token, memory=memory())


def load():
    import_torch()
    from transformers import AutoModelForCausalLM

    assert AutoModelForCausalLM
    before = memory()
    model, seconds = from_pretrained()
    loaded = memory()
    touched = touch(model.parameters())
    answer("load", seconds=seconds, touched_seconds=seconds + touched,
           memory={"before": before, "loaded": loaded, "touched": memory()})


def read():
    import_torch()
    from safetensors.torch import load_file

    before = memory()
    begin = time.perf_counter()
    tensors = {}
    for file in sorted(Path(arguments.folder).glob("*.safetensors")):
        tensors |= load_file(file)
    seconds = time.perf_counter() - begin
    read = memory()
    copies = {name: tensor.clone() for name, tensor in tensors.items()}
    copied = time.perf_counter() - begin
    answer("read", seconds=seconds, copied_seconds=copied, tensors=len(copies),
           memory={"before": before, "read": read, "copied": memory()})


def repeat(work):
    """Seconds of each run, after a warm-up."""
    work()
    seconds = []
    for _ in range(arguments.runs):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return seconds


def score():
    torch = import_torch()
    model, _ = from_pretrained()
    tokens = prompt(torch, model, 256)
    with torch.inference_mode():
        seconds = repeat(lambda: model(tokens, use_cache=False).logits)
    answer("score", tokens=256, tokens_per_second=256 / statistics.median(seconds), seconds=seconds, memory=memory())


def decode():
    torch = import_torch()
    model, _ = from_pretrained()
    # Without an EOS token, all runs have the same length.
    model.generation_config.eos_token_id = None
    tokens = prompt(torch, model, 32)
    given = {"attention_mask": torch.ones_like(tokens), "do_sample": False, "pad_token_id": 0}
    with torch.inference_mode():
        first = repeat(lambda: model.generate(tokens, max_new_tokens=1, **given))
        seconds = repeat(lambda: model.generate(tokens, max_new_tokens=64, **given))
        bare = repeat(lambda: loop(torch, model, tokens, 64))
    answer(
        "decode", tokens=64, tokens_per_second=64 / statistics.median(seconds), seconds=seconds,
        # Without prefill and the first token; and without the overhead of `generate`.
        steady_tokens_per_second=63 / (statistics.median(seconds) - statistics.median(first)),
        bare_tokens_per_second=64 / statistics.median(bare), memory=memory(),
    )


def loop(torch, model, tokens, count):
    """A bare decoding loop."""
    cache = None
    for _ in range(count):
        given = model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
        tokens, cache = given.logits[:, -1:].argmax(-1), given.past_key_values


CASES = {"first-token": first_token, "load": load, "read": read, "score": score, "decode": decode}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("folder")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--attention", default="sdpa", choices=["sdpa", "eager"])
    arguments = parser.parse_args()
    CASES[arguments.case]()
