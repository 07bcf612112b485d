"""`wl.Model`: the command's text and transformers' numbers, from threads, streams and lists."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import transformers
import weightloom as wl
from weightloom import _model
from weightloom._call import call
from weightloom._progress import Progress

TOLERANCE = 1e-4
"""Of logits and log-probabilities: f32 sums in another order."""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

PROMPT = "A rank holds"


def save_tokenizer(folder: Path) -> transformers.PreTrainedTokenizerFast:
    """Makes a tokenizer of bytes and a few merges, with a chat template."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    special = ["<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(["a rank holds the shards of a tensor", "ranks hold shards"] * 4, trainer)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<|begin|>", eos_token="<|end|>", chat_template=CHAT_TEMPLATE
    )
    tokenizer.save_pretrained(folder)
    return tokenizer


class Twin:
    """A random Llama in transformers and here."""

    def __init__(self, folder: Path) -> None:
        torch.manual_seed(5)
        self.folder = folder
        self.tokenizer = save_tokenizer(folder)
        config = transformers.LlamaConfig(
            vocab_size=len(self.tokenizer),
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=1 << 20,
            # Large, so that the most likely token is so by far.
            initializer_range=0.3,
            bos_token_id=self.tokenizer.bos_token_id,
            eos_token_id=self.tokenizer.eos_token_id,
        )
        self.theirs: Any = transformers.LlamaForCausalLM(config).eval()
        self.theirs.save_pretrained(folder)
        self.ours = wl.Model(folder)

    def logits(self, tokens: Any) -> torch.Tensor:
        with torch.no_grad():
            found: torch.Tensor = self.theirs(torch.as_tensor(tokens)).logits
        return found


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Twin:
    return Twin(tmp_path_factory.mktemp("twin"))


@pytest.fixture(scope="module")
def pretrained(quickstart: Path) -> wl.Model:
    return wl.Model(quickstart / "pretrain")


def difference(ours: Any, theirs: Any) -> float:
    return float((torch.as_tensor(ours) - torch.as_tensor(theirs)).abs().max())


def of_command(name: Path, prompt: str, *options: str) -> str:
    """The text of the command."""
    text: str = call("generate", [name, prompt], options).result["text"]
    return text


@pytest.mark.parametrize(
    ("options", "flags"),
    [
        ({}, []),
        ({"max_new_tokens": 7}, ["--max-new-tokens=7"]),
        ({"sample": True, "seed": 3}, ["--sample", "--seed=3"]),
        (
            {"temperature": 0.9, "top_k": 20, "top_p": 0.9, "min_p": 0.01, "seed": 5},
            ["--temperature=0.9", "--top-k=20", "--top-p=0.9", "--min-p=0.01", "--seed=5"],
        ),
        ({"repetition_penalty": 1.5}, ["--repetition-penalty=1.5"]),
        ({"stop": "e"}, ["--stop=e"]),
        ({"stop": ["th", " a"], "ignore_eos": True}, ["--stop=th", "--stop= a", "--ignore-eos"]),
    ],
)
def test_the_text_is_that_of_the_command(
    quickstart: Path, pretrained: wl.Model, options: dict[str, Any], flags: list[str]
) -> None:
    text = pretrained.generate(PROMPT, **options)
    assert text == of_command(quickstart / "pretrain", PROMPT, *flags)
    assert "".join(pretrained.stream(PROMPT, **options)) == text


def test_an_adapter_is_applied_as_by_the_command(
    quickstart: Path, pretrained: wl.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The adapter names its base model relative to this folder.
    monkeypatch.chdir(quickstart.parent)
    [adapter] = (quickstart / "tune/checkpoints").glob("step_*")
    run = wl.Model(quickstart / "tune")
    assert run.adapter == os.fspath(adapter) and run.num_parameters == pretrained.num_parameters
    assert any("newest checkpoint" in note for note in run.notes)
    text = run.generate(PROMPT, max_new_tokens=24)
    assert text == of_command(quickstart / "tune", PROMPT, "--max-new-tokens=24")
    named = wl.Model(quickstart / "pretrain", adapter)
    assert difference(named.logits(PROMPT), run.logits(PROMPT)) == 0
    off = wl.Model(quickstart / "pretrain", adapter, adapter_scale=0)
    assert difference(off.logits(PROMPT), pretrained.logits(PROMPT)) == 0
    merged = wl.Model(quickstart / "pretrain", adapter, merge=True)
    assert 0 < difference(merged.logits(PROMPT), pretrained.logits(PROMPT))
    assert difference(merged.logits(PROMPT), run.logits(PROMPT)) < TOLERANCE


def test_lists_have_the_texts_of_their_prompts(pretrained: wl.Model) -> None:
    prompts = [PROMPT, "A shard", "The", PROMPT]
    texts = pretrained.generate(prompts, max_new_tokens=12)
    assert texts == [pretrained.generate(prompt, max_new_tokens=12) for prompt in prompts]
    rows = [pretrained.tokenize(prompt) for prompt in prompts]
    assert pretrained.generate(rows, max_new_tokens=12) == texts
    assert pretrained.generate(rows[0], max_new_tokens=12) == texts[0]
    assert pretrained.generate(torch.tensor(rows[0]), max_new_tokens=12) == texts[0]
    assert pretrained.generate([], max_new_tokens=12) == []
    drawn = pretrained.generate([PROMPT, PROMPT], max_new_tokens=12, temperature=2.0)
    assert drawn[0] != drawn[1]
    assert drawn[0] == pretrained.generate(PROMPT, max_new_tokens=12, temperature=2.0)


def test_logits_and_scores_are_those_of_transformers(twin: Twin) -> None:
    rows = torch.randint(0, twin.ours.vocabulary_size, (3, 17), generator=torch.Generator().manual_seed(1))
    theirs = twin.logits(rows)
    ours = twin.ours.logits(rows)
    assert isinstance(ours, torch.Tensor) and ours.shape == theirs.shape and ours.dtype == torch.float32
    assert difference(ours, theirs) <= TOLERANCE
    assert difference(twin.ours.logits(rows.tolist()), ours) == 0
    assert difference(twin.ours.logits(rows[1].tolist()), ours[1]) == 0
    # Rows longer than the positions that are computed at once.
    long = rows.reshape(-1).repeat(12).tolist()
    assert difference(twin.ours.logits(long), twin.logits([long])[0]) <= TOLERANCE

    scores = twin.ours.score(rows.tolist(), top=2)
    likely = torch.log_softmax(theirs, -1)
    for row, score, table in zip(rows, scores, likely, strict=True):
        expected = table[:-1].gather(1, row[1:, None])[:, 0]
        assert score.tokens == row.tolist() and score.log_probabilities[0] is None
        assert difference(score.log_probabilities[1:], expected) <= TOLERANCE
        assert abs(score.total - float(expected.sum())) <= TOLERANCE * len(row)
        assert score.perplexity == pytest.approx(float(torch.exp(-expected.mean())), rel=1e-4)
        best = table[:-1].topk(2).indices
        assert [[token for token, _ in top] for top in score.likeliest[1:]] == best.tolist()


def test_texts_are_scored_as_by_the_command(quickstart: Path, pretrained: wl.Model) -> None:
    result = call("score", [quickstart / "pretrain", PROMPT], ["--top=3"]).result
    score, other = pretrained.score([PROMPT, "A shard"], top=3)
    assert score.total == result["log_probability"] and score.perplexity == result["perplexity"]
    assert score.pieces == [token["piece"] for token in result["tokens"]]
    assert score.log_probabilities == [token["log_probability"] for token in result["tokens"]]
    assert other == pretrained.score("A shard", top=3)
    assert repr(score) == f"<Score: {len(score.tokens)} tokens, log probability {score.total:.4f}, " + (
        f"perplexity {score.perplexity:.3f}>"
    )
    html = score._repr_html_()
    assert html.count("<tr>") == len(score.tokens) + 1 and "most likely" in html


def test_conversations_are_those_of_transformers(twin: Twin) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is a rank? é"}]
    rendered = twin.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    tokens = twin.tokenizer(rendered, add_special_tokens=False)["input_ids"]
    generated = twin.theirs.generate(torch.tensor([tokens]), max_new_tokens=24, do_sample=False)[0, len(tokens) :]
    expected = twin.tokenizer.decode(generated, skip_special_tokens=True)
    answer = twin.ours.chat(messages, max_new_tokens=24)
    assert answer == expected and len(answer) > 0
    assert "".join(twin.ours.stream(messages, max_new_tokens=24)) == expected
    system, user = (message["content"] for message in messages)
    assert twin.ours.generate(user, system=system, max_new_tokens=24) == expected
    flags = [f"--system={system}", "--max-new-tokens=24"]
    assert of_command(twin.folder, user, *flags) == expected
    alone = twin.ours.chat(messages[1:], max_new_tokens=24)
    assert twin.ours.generate(user, chat=True, max_new_tokens=24) == alone != expected
    assert not twin.ours.is_chat and twin.ours.generate(user, max_new_tokens=24) != alone


def test_texts_become_tokens_and_back(twin: Twin) -> None:
    text = "A rank holds 世界 🦀"
    tokens = twin.ours.tokenize(text)
    assert tokens == twin.tokenizer(text)["input_ids"]
    assert twin.ours.tokenize([text, ""]) == [tokens, twin.ours.tokenize("")]
    ended = [*twin.ours.tokenize(text, plain=True), twin.tokenizer.eos_token_id]
    assert twin.ours.detokenize(ended) == text and twin.ours.detokenize(torch.tensor(ended)) == text
    assert twin.ours.detokenize(ended, keep_special=True) == text + "<|end|>"
    assert twin.ours.detokenize([]) == ""


def test_logits_are_arrays_without_torch(twin: Twin, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = twin.ours.logits(PROMPT)
    monkeypatch.setitem(sys.modules, "torch", None)
    found = twin.ours.logits(PROMPT)
    assert isinstance(found, numpy.ndarray) and found.dtype == numpy.float32 and not found.flags.owndata
    assert (found == expected.numpy()).all()
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(wl.UserError, match="neither torch nor numpy is installed"):
        twin.ours.logits(PROMPT)


def generating() -> int:
    """The number of threads of this process that generate for a stream."""
    names = (Path(task) / "comm" for task in Path("/proc/self/task").iterdir())
    return sum(name.read_text().strip() == "generate" for name in names)


LONG = {"max_new_tokens": 1 << 19, "ignore_eos": True}
"""Options of a text that nobody waits for."""


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_a_stream_ends_when_it_is_closed(twin: Twin) -> None:
    stream = twin.ours.stream(PROMPT, **LONG)
    assert generating() == 0
    pieces = [next(stream) for _ in range(3)]
    assert generating() == 1 and all(pieces)
    assert twin.ours.generate(PROMPT, max_new_tokens=24, ignore_eos=True).startswith("".join(pieces))
    stream.close()
    assert generating() == 0 and list(stream) == []

    dropped = twin.ours.stream(PROMPT, **LONG)
    next(dropped)
    del dropped
    assert generating() == 0
    for _ in twin.ours.stream(PROMPT, **LONG):
        break
    gc.collect()
    assert generating() == 0


def interrupt_after(seconds: float) -> None:
    threading.Timer(seconds, os.kill, [os.getpid(), signal.SIGINT]).start()


def test_ctrl_c_ends_a_generation_between_tokens(twin: Twin) -> None:
    began = time.monotonic()
    interrupt_after(0.3)
    with pytest.raises(KeyboardInterrupt):
        twin.ours.generate(PROMPT, **LONG)
    interrupt_after(0.3)
    with pytest.raises(KeyboardInterrupt):
        for _ in twin.ours.stream(PROMPT, **LONG):
            pass
    # The whole text takes minutes.
    assert time.monotonic() - began < 10
    assert twin.ours.generate(PROMPT, max_new_tokens=4, ignore_eos=True)


def test_ctrl_c_ends_a_wait_for_a_stream(twin: Twin) -> None:
    # No stop text, and so no piece, before the first whole character: a long prompt is computed first.
    stream = twin.ours.stream(twin.ours.tokenize(PROMPT) * 20_000, max_new_tokens=1)
    began = time.monotonic()
    interrupt_after(0.3)
    with pytest.raises(KeyboardInterrupt):
        next(stream)
    assert time.monotonic() - began < 10


def test_threads_get_what_one_alone_gets(twin: Twin) -> None:
    prompts = [PROMPT, "ranks hold", "shards of a tensor", "a"]
    rows = [twin.ours.tokenize(prompt) for prompt in prompts]

    def work(row: list[int]) -> tuple[Any, ...]:
        text = twin.ours.generate(row, max_new_tokens=24)
        pieces = "".join(twin.ours.stream(row, max_new_tokens=24))
        return text, pieces, twin.ours.score(row, top=1) if len(row) > 1 else None, twin.ours.logits(row).tolist()

    alone = [work(row) for row in rows]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(work, rows * 4))
    assert together == alone * 4


def in_fork(model: wl.Model, stream: Iterator[str], folder: Path, answers: Any) -> None:
    for attempt in (
        lambda: model.generate(PROMPT, max_new_tokens=1),
        lambda: model.score(PROMPT),
        lambda: model.logits(PROMPT),
        lambda: next(model.stream(PROMPT)),
        lambda: next(stream),
        lambda: wl.Model(folder),
    ):
        try:
            attempt()
            answers.put("no error")
        except wl.UserError as error:
            answers.put(str(error))
    # What computes nothing works.
    answers.put(model.detokenize(model.tokenize(PROMPT)))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork")
def test_a_forked_process_is_refused_with_a_reason(twin: Twin) -> None:
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    stream = twin.ours.stream(PROMPT, max_new_tokens=24, ignore_eos=True)
    first = next(stream)
    child = context.Process(target=in_fork, args=(twin.ours, stream, twin.folder, answers))
    child.start()
    told = [answers.get(timeout=60) for _ in range(7)]
    child.join(60)
    assert child.exitcode == 0
    assert told.pop() == PROMPT
    assert all("do not survive a fork" in text or "does not survive a fork" in text for text in told), told
    assert all("hint:" in text for text in told)
    # The parent is as before.
    assert first + "".join(stream) == twin.ours.generate(PROMPT, max_new_tokens=24, ignore_eos=True)


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_dropped_model_is_freed(tmp_path: Path) -> None:
    tokens = len(save_tokenizer(tmp_path))
    config = transformers.LlamaConfig(
        vocab_size=tokens, hidden_size=512, intermediate_size=1024, num_hidden_layers=2, num_attention_heads=4
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    size = 4 * wl.Model(tmp_path).num_parameters
    assert size > 8 << 20

    def use() -> None:
        model = wl.Model(tmp_path)
        model.generate([65, 66], max_new_tokens=2)
        model.logits([[65, 66]])
        stream = model.stream([65, 66], **LONG)
        next(stream)

    for _ in range(10):
        use()
    before = resident()
    for _ in range(50):
        use()
    assert resident() - before < size


def test_failures_are_those_of_the_command(quickstart: Path, twin: Twin, tmp_path: Path) -> None:
    for name in ("no_such_model", tmp_path / "absent", tmp_path):
        with pytest.raises(wl.WeightloomError) as ours:
            wl.Model(name)
        with pytest.raises(wl.WeightloomError) as theirs:
            call("generate", [name, PROMPT])
        assert str(ours.value) == str(theirs.value) and type(ours.value) is type(theirs.value)
    with pytest.raises(wl.UserError) as ours:
        wl.Model(quickstart / "pretrain", quickstart / "pretrain")
    with pytest.raises(wl.UserError) as theirs:
        call("generate", [quickstart / "pretrain", PROMPT], [f"--adapter={quickstart / 'pretrain'}"])
    assert str(ours.value) == str(theirs.value)
    with pytest.raises(wl.UserError) as ours:
        twin.ours.generate(PROMPT, temperature=-1)
    with pytest.raises(wl.UserError) as theirs:
        call("generate", [twin.folder, PROMPT], ["--temperature=-1"])
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda m, f: wl.Model(f, adapter_scale=0.5), "cannot use `adapter_scale`"),
        (lambda m, f: wl.Model(f, merge=True), "cannot use `merge`"),
        (lambda m, f: wl.Model(f, device="gpu"), "unknown device `gpu`\nhint: use auto, cpu, cuda or cuda:N"),
        (lambda m, f: wl.Model(f, dtype="f31"), "f31"),
        (lambda m, f: wl.Model(f, dtype=torch.int32), "unsupported for computation"),
        (lambda m, f: m.generate(PROMPT, max_new_tokens=-1), "invalid `max_new_tokens`: -1"),
        (lambda m, f: m.generate(PROMPT, top_p=2.0), "invalid `top_p`: 2"),
        (lambda m, f: m.generate(PROMPT, system="x", chat=False), "without the chat template"),
        (lambda m, f: m.generate(b"bytes"), "prompt of type bytes"),
        (lambda m, f: m.generate([1.5]), "type float"),
        (lambda m, f: m.generate([[1], [0.5]]), "found a float"),
        (lambda m, f: m.generate([-1]), "cannot use the token -1"),
        (lambda m, f: m.generate([1 << 20]), "1048576"),
        (lambda m, f: m.stream([PROMPT, PROMPT]), "cannot stream"),
        (lambda m, f: m.chat([{"content": "no role"}]), "`role`"),
        (lambda m, f: m.chat([{"role": "user", "content": object()}]), "cannot read the conversation"),
        (lambda m, f: m.score([]) == [] and m.score([[]]), "cannot score an empty text"),
        (lambda m, f: m.score(PROMPT, top=-1), "invalid `top`"),
        (lambda m, f: m.logits([[1, 2], [3]]), "rows of 2 and 1 tokens"),
        (lambda m, f: m.logits([]), "logits of no tokens"),
        (lambda m, f: m.logits([1 << 20]), "1048576"),
        (lambda m, f: m.detokenize("text"), "cannot decode"),
    ],
)
def test_what_is_impossible_is_an_error_with_a_reason(twin: Twin, attempt: Any, message: str) -> None:
    with pytest.raises(wl.UserError) as found:
        attempt(twin.ours, twin.folder)
    assert message in str(found.value)


def test_unknown_options_are_errors(twin: Twin) -> None:
    with pytest.raises(TypeError, match="max_tokens"):
        twin.ours.generate(PROMPT, max_tokens=3)  # type: ignore[call-overload]


def test_missing_tensors_are_warnings_if_they_may_be_missing(twin: Twin, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    for file in twin.folder.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "model.safetensors").unlink()
    state = load_file(twin.folder / "model.safetensors")
    del state["model.norm.weight"]
    save_file(state, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(wl.CheckFailed, match="norm.weight"):
        wl.Model(tmp_path)
    with pytest.warns(RuntimeWarning, match="norm"):
        wl.Model(tmp_path, strict=False)


def test_dtypes_maps_and_descriptions(twin: Twin, quickstart: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []

    class Recorded(Progress):
        def begin(self, work: str, total: int) -> None:
            begun.append(work)

    monkeypatch.setattr(_model, "new_progress", Recorded)
    half = wl.Model(twin.folder, dtype=torch.bfloat16)
    assert begun and half.dtype == "bf16"
    assert 0 < difference(half.logits(PROMPT), twin.ours.logits(PROMPT)) < 2
    mapped = wl.Model(twin.folder, mmap=True, device=torch.device("cpu"))
    assert difference(mapped.logits(PROMPT), twin.ours.logits(PROMPT)) == 0

    count = sum(parameter.numel() for parameter in twin.theirs.parameters())
    assert twin.ours.num_parameters == count and twin.ours.config["hidden_size"] == 64
    assert twin.ours.context_length == 1 << 20 and twin.ours.vocabulary_size == len(twin.tokenizer)
    assert repr(twin.ours) == f"<Model {twin.folder}: llama, {count:,} parameters, f32, on cpu>"
    html = twin.ours._repr_html_()
    assert "config.hidden_size" in html and f"{count:,} parameters" in html
    monkeypatch.chdir(quickstart.parent)
    assert "with adapter" in repr(wl.Model(quickstart / "tune"))
