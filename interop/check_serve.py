"""`weightloom serve` through OpenAI's client, compared with transformers."""

import asyncio
import signal
import time

import openai
import torch
from transformers import (
    AutoModelForCausalLM, AutoTokenizer, LogitsProcessorList, MinPLogitsWarper, TemperatureLogitsWarper,
    TopKLogitsWarper, TopPLogitsWarper,
)

from check_smollm2 import CHAT, continued, file
from logprobs import same_tokens, assert_close, expected
from servers import serve
from tiny_models import BUILT_IN, NEW_TOKENS, PROMPT, unambiguous, logits, save, text, word

GREEDY = {"temperature": 0.0, "extra_body": {"ignore_eos": True}}
KEY = "a key for this check"


def run(place, ours, report):
    model, chosen = unambiguous(*BUILT_IN["llama"])
    folder = save(model, place / "tiny-llama")
    with serve(ours, folder) as server:
        completions(report, server, model, chosen)
        draws(report, server, model)
        refusals(report, server)
        broken(report, server, chosen)
        with report.check("serve exits on SIGTERM") as check:
            check.of, check.count = "servers", 1
            assert server.stop() == 0, f"it exited with {server.process.returncode}"
    keys(report, ours, folder)
    chat(place, report, ours)


def numbers(answer):
    return [int(chunk.removeprefix("t")) for chunk in answer.split()]


def completions(report, server, model, chosen):
    client = server.client()
    name = server.model

    def complete(prompt, **options):
        return client.completions.create(model=name, prompt=prompt, **(GREEDY | {"max_tokens": NEW_TOKENS} | options))

    with report.check("serve: models") as check:
        check.of, check.count = "models", len(client.models.list().data)
        assert [model.id for model in client.models.list()] == [name] == ["tiny-llama"]
        assert client.models.retrieve(name).id == name
    with report.check("serve: completions → transformers") as check:
        answer = complete(text(PROMPT))
        same_tokens(check, numbers(answer.choices[0].text), chosen)
        assert answer.choices[0].finish_reason == "length" and answer.model == name
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(PROMPT), NEW_TOKENS)
    with report.check("serve: completions as a stream → transformers") as check:
        chunks = list(complete(text(PROMPT), stream=True, stream_options={"include_usage": True}))
        same_tokens(check, numbers("".join(chunk.choices[0].text for chunk in chunks[:-1])), chosen)
        assert len(chunks) > NEW_TOKENS // 2, "it is not streamed"
        assert chunks[-2].choices[0].finish_reason == "length" and not chunks[-1].choices
        assert chunks[-1].usage.total_tokens == len(PROMPT) + NEW_TOKENS
    with report.check("serve: completions with a stop → transformers") as check:
        late = max(chosen, key=chosen.index)
        for stop in (f" {word(late)}", ["not written", word(late)]):
            for stream in (False, True):
                answer = complete(text(PROMPT), stop=stop, stream=stream)
                choices = [chunk.choices[0] for chunk in answer] if stream else answer.choices
                same_tokens(check, numbers("".join(choice.text for choice in choices)), chosen[:chosen.index(late)])
                assert choices[-1].finish_reason == "stop", choices[-1].finish_reason
    with report.check("serve: token prompts and several prompts → transformers") as check:
        prompts = [PROMPT, PROMPT[:5], PROMPT[3:17], PROMPT[7:8]]
        wanted = [continued_tokens(model, prompt) for prompt in prompts]
        counted = 0
        for asked in (prompts, [text(prompt) for prompt in prompts]):
            answer = complete(asked)
            assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
            for choice, tokens in zip(answer.choices, wanted):
                same_tokens(check, numbers(choice.text), tokens)
                counted += len(tokens)
        same_tokens(check, numbers(complete(PROMPT).choices[0].text), chosen)
        assert answer.usage.prompt_tokens == sum(map(len, prompts))
        check.count += counted
    with report.check("serve: an empty prompt is the BOS token → transformers") as check:
        same_tokens(check, numbers(complete("").choices[0].text), continued_tokens(model, [model.config.bos_token_id]))
    with report.check("serve: echo of log-probabilities → transformers") as check:
        prompts = [PROMPT, PROMPT[:6], PROMPT[2:15]]
        answer = complete([text(prompt) for prompt in prompts], echo=True, logprobs=5, max_tokens=0)
        counted = 0
        for choice, prompt in zip(answer.choices, prompts):
            assert choice.text == text(prompt) and choice.logprobs.tokens == [word(token) for token in prompt]
            counted += compare_logprobs(check, choice.logprobs, prompt, expected(model, prompt), 5)
            places = [choice.text[at:].split()[0] for at in choice.logprobs.text_offset]
            assert places == choice.logprobs.tokens, "text offsets differ"
        check.count = counted
    with report.check("serve: log-probabilities of generated tokens → transformers") as check:
        both = PROMPT + chosen
        rows = expected(model, both)
        echoed = complete(text(PROMPT), echo=True, logprobs=3).choices[0]
        assert numbers(echoed.text) == both
        counted = compare_logprobs(check, echoed.logprobs, both, rows, 3)
        alone = complete(text(PROMPT), logprobs=3).choices[0].logprobs
        found = torch.tensor(alone.token_logprobs)
        assert_close(check, found, rows[len(PROMPT) - 1:].gather(1, torch.tensor(chosen)[:, None])[:, 0])
        check.count += counted


def continued_tokens(model, prompt):
    """Greedy tokens, with gaps larger than rounding errors."""
    tokens = list(prompt)
    for _ in range(NEW_TOKENS):
        best = logits(model, tokens)[-1].topk(2)
        assert best.values[0] - best.values[1] > 1e-4, "two tokens are almost equally likely"
        tokens.append(int(best.indices[0]))
    return tokens[len(prompt):]


def compare_logprobs(check, given, tokens, rows, likeliest):
    """Compares log-probabilities in the legacy format: the likeliest tokens and the actual one. Returns their number."""
    assert given.token_logprobs[0] is None and given.top_logprobs[0] is None
    assert_close(check, torch.tensor(given.token_logprobs[1:]), rows.gather(1, torch.tensor(tokens[1:])[:, None])[:, 0])
    count = len(rows)
    for top, row, token in zip(given.top_logprobs[1:], rows, tokens[1:]):
        best = row.topk(likeliest).indices.tolist()
        assert top.keys() == {word(one) for one in [token, *best]}, "the likeliest tokens differ"
        names = list(top)
        assert_close(check, torch.tensor([top[one] for one in names]), row[numbers(" ".join(names))])
        count += len(names)
    return count


def draws(report, server, model):
    """Counts sampled tokens, against the probabilities of transformers after its filters."""
    client, batch, batches = server.client(), 128, 16
    scores = logits(model, PROMPT)[-1:]
    ways = {
        "temperature": ({"temperature": 0.8}, [TemperatureLogitsWarper(0.8)]),
        "top_p": ({"temperature": 1.0, "top_p": 0.7}, [TopPLogitsWarper(0.7)]),
        "top_k": ({"temperature": 1.5, "extra_body": {"top_k": 6}}, [TemperatureLogitsWarper(1.5), TopKLogitsWarper(6)]),
        "min_p": ({"temperature": 1.0, "extra_body": {"min_p": 0.1}}, [MinPLogitsWarper(0.1)]),
    }
    for name, (options, filters) in ways.items():
        with report.check(f"serve: sampling with {name} → transformers' probabilities") as check:
            chances = LogitsProcessorList(filters)(torch.tensor([PROMPT]), scores).softmax(-1)[0].double()
            counts = torch.zeros(101, dtype=torch.float64)
            for seed in range(batches):
                answer = client.completions.create(
                    model=server.model, prompt=PROMPT, n=batch, seed=seed, max_tokens=1, **options)
                for choice in answer.choices:
                    # A sampled EOS token is not in the text.
                    counts[numbers(choice.text)[0] if choice.text else 2] += 1
            check.of, check.count = "draws", int(counts.sum())
            assert check.count == batch * batches
            assert not counts[chances == 0].any(), "a token of probability zero was sampled"
            likely = chances * check.count >= 5
            rest = (~likely) & (chances > 0)
            bins = [(counts[i], chances[i]) for i in likely.nonzero()[:, 0]] + (
                [(counts[rest].sum(), chances[rest].sum())] if rest.any() else [])
            freedom = len(bins) - 1
            assert freedom >= 3, "too few tokens for a test"
            squares = sum(float((found - share * check.count) ** 2 / (share * check.count)) for found, share in bins)
            # Mean and variance of chi-squared are k and 2k; five standard deviations are one in a million.
            limit = freedom + 5 * (2 * freedom) ** 0.5
            assert squares < limit, f"chi-squared is {squares:.0f} with {freedom} degrees of freedom"
    with report.check("serve: equal seeds give equal samples, other seeds others") as check:
        drawn = {}
        for seed in (1, 1, 2):
            answer = client.completions.create(model=server.model, prompt=PROMPT, n=4, seed=seed, max_tokens=20)
            texts = [choice.text for choice in answer.choices]
            assert drawn.setdefault(seed, texts) == texts, "the same seed gave another text"
            assert len(set(texts)) == 4, "samples are equal"
            check.count += len(texts)
        check.of = "texts"
        assert drawn[1] != drawn[2]


def refusals(report, server):
    client = server.client()
    wrong = {
        "a temperature below 0": ({"temperature": -1}, "temperature", None),
        "top_p above 1": ({"top_p": 1.5}, "top_p", None),
        "too many tokens": ({"max_tokens": 60}, "max_tokens", "context_length_exceeded"),
        "no prompts": ({"prompt": []}, "prompt", None),
        "no tokens": ({"prompt": [[]]}, "prompt[0]", None),
        "an unknown token": ({"prompt": [5, 101]}, "prompt", None),
        "a negative token": ({"prompt": [5, -1]}, "prompt[1]", None),
        "a prompt of a wrong kind": ({"prompt": {"text": "t5"}}, "prompt", None),
        "n of 0": ({"n": 0}, "n", None),
        "n of a million": ({"n": 10**6}, "n", None),
        "too many log-probabilities": ({"logprobs": 1000}, "logprobs", None),
        "a word for a number": ({"max_tokens": "many"}, "max_tokens", None),
        "logit_bias, which is not supported": ({"logit_bias": {"5": 3}}, "logit_bias", None),
        "max_tokens beyond all integers": ({"max_tokens": 2**70}, "max_tokens", None),
    }
    with report.check("serve: invalid requests → openai.BadRequestError") as check:
        check.of = "requests"
        for what, (fields, param, code) in wrong.items():
            try:
                client.completions.create(**({"model": server.model, "prompt": text(PROMPT)} | fields))
            except openai.BadRequestError as error:
                assert (error.param, error.code) == (param, code), f"{what}: {error.param}, {error.code}"
                assert error.type == "invalid_request_error" and error.body["message"], what
            else:
                raise AssertionError(f"{what} was accepted")
            check.count += 1
    with report.check("serve: an unknown model → openai.NotFoundError") as check:
        check.of = "requests"
        for ask in (lambda: client.completions.create(model="another", prompt="t5"),
                    lambda: client.models.retrieve("another"),
                    lambda: client.embeddings.create(model=server.model, input="t5")):
            try:
                ask()
            except openai.NotFoundError as error:
                assert error.code in ("model_not_found", "unknown_url"), error.code
            else:
                raise AssertionError("it was found")
            check.count += 1
    with report.check("serve: chat without a template → openai.BadRequestError") as check:
        check.of, check.count = "requests", 1
        try:
            client.chat.completions.create(model=server.model, messages=[{"role": "user", "content": "t5"}])
        except openai.BadRequestError as error:
            assert error.code == "no_chat_template", error.code
        else:
            raise AssertionError("it was answered")


def broken(report, server, chosen):
    """Malformed requests do not affect the next one."""
    good = b'{"prompt": "t5", "max_tokens": 1}'
    bodies = {
        "nothing": (b"", 400), "no JSON": (b"prompt=t5", 400), "half of JSON": (good[:-7], 400),
        "a list": (b"[1, 2]", 400), "no UTF-8": (b'{"prompt": "\xff\xfe"}', 400),
        "half a surrogate": (b'{"prompt": "\\ud800"}', 400),
        "deep lists": (b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400),
        "not a number": (b'{"prompt": "t5", "temperature": NaN}', 400),
        "too large a number": (b'{"prompt": "t5", "temperature": 1e999}', 400),
        "nine megabytes": (b'{"prompt": "' + b"t5 " * 3_000_000 + b'"}', 413),
        "text after the end": (good + b"}", 400),
    }
    with report.check("serve: malformed bodies are rejected, and the next request is answered") as check:
        check.of = "requests"
        for what, (body, status) in bodies.items():
            line = server.post(body)
            assert line.startswith(f"HTTP/1.1 {status} "), f"{what}: {line!r}"
            answers(server, chosen)
            check.count += 1
        line = server.post(good, b"Content-Encoding: gzip\r\n")
        assert line.startswith("HTTP/1.1 415 "), line
        line = server.post(good)
        assert line.startswith("HTTP/1.1 200 "), line
    post = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    requests = {
        "no HTTP": b"hello\r\n\r\n",
        "all bytes": bytes(range(256)) * 40,
        "TLS": bytes.fromhex("16030100c8010000c40303") + bytes(190),
        "a long head": b"GET /v1/models HTTP/1.1\r\nX: " + b"x" * 10**6 + b"\r\n\r\n",
        "two lengths": post + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n12345",
        "a negative length": post + b"Content-Length: -5\r\n\r\n12345",
        "a length of terabytes": post + b"Content-Length: 9999999999999\r\n\r\n",
        "a broken chunk": post + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        "a body that breaks off": post + b"Content-Length: 500\r\n\r\n" + good,
        "a head that breaks off": post,
        "another method": post.replace(b"POST", b"DELETE") + b"\r\n",
        "another path": post.replace(b"/v1", b"/../..") + b"\r\n",
    }
    with report.check("serve: malformed requests are rejected, and the next is answered") as check:
        check.of = "requests"
        for what, sent in requests.items():
            line = server.raw(sent, then="break off" if "breaks off" in what else "wait")
            # An error status, or a closed connection.
            assert not line or line.split()[1].startswith("4"), f"{what}: {line!r}"
            answers(server, chosen)
            check.count += 1


def answers(server, chosen):
    answer = server.client().completions.create(model=server.model, prompt=PROMPT, max_tokens=3, **GREEDY)
    assert numbers(answer.choices[0].text) == chosen[:3], "another answer than before"


def keys(report, ours, folder):
    with report.check("serve: a key → openai.AuthenticationError without it") as check:
        check.of = "requests"
        with serve(ours, folder, "--served-name", "org/mine", WEIGHTLOOM_API_KEY=KEY) as server:
            for wrong in ("none", KEY[:-1], KEY + "x", KEY.upper()):
                for ask in (lambda client: client.models.list(),
                            lambda client: client.completions.create(model=server.model, prompt="t5")):
                    try:
                        ask(server.client(key=wrong))
                    except openai.AuthenticationError as error:
                        assert error.code == "invalid_api_key" and KEY not in str(error), error
                    else:
                        raise AssertionError(f"{wrong!r} is let in")
                    check.count += 1
            client = server.client(key=KEY)
            assert [model.id for model in client.models.list()] == ["org/mine"]
            assert client.models.retrieve("org/mine").id == "org/mine"
            assert client.completions.create(model="org/mine", prompt="t5", max_tokens=1).choices
            assert server.stop(signal.SIGINT) == 0, f"SIGINT: it exited with {server.process.returncode}"


def chat(place, report, ours):
    source = file()
    folder = place / "SmolLM2"
    ours.call("export", source, folder, "--dtype", "f32")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    with serve(ours, source, "--dtype", "f32", "--served-name", "smollm2", "--max-waiting", 8) as server:
        client = server.client()
        wanted = []
        for spoken in CHAT:
            messages = [{"role": role, "content": content} for role, content in spoken]
            prompt = tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
            tokens = continued(model, prompt)
            wanted.append((messages, tokenizer.decode(tokens)))
            answered(report, client, messages, tokens, tokenizer, model, prompt["input_ids"])
        with report.check("serve: concurrent chats give the same answers as single ones") as check:
            check.of, check.count = "answers", asyncio.run(together(server, wanted * 3))
        crowds(report, server, *wanted[0])
        with report.check("serve: SIGTERM lets a stream finish") as check:
            check.of = "tokens"
            messages, answer = wanted[1]
            stream = client.chat.completions.create(
                model="smollm2", messages=messages, stream=True, max_tokens=48, temperature=0)
            chunks = [next(stream)]
            server.process.send_signal(signal.SIGTERM)
            chunks += stream
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == answer
            check.count = len(chunks)
            assert server.stop() == 0, f"it exited with {server.process.returncode}"


def answered(report, client, messages, tokens, tokenizer, model, prompt):
    wanted = tokenizer.decode(tokens)
    asked = {"model": "smollm2", "messages": messages, "max_tokens": 48, "temperature": 0}
    what = messages[-1]["content"]
    with report.check(f"serve: chat {what!r} → transformers") as check:
        check.of = "tokens"
        answer = client.chat.completions.create(**asked, logprobs=True, top_logprobs=2)
        choice = answer.choices[0]
        assert (choice.message.role, choice.message.content) == ("assistant", wanted), choice.message
        assert choice.finish_reason == ("length" if len(tokens) == 48 else "stop"), choice.finish_reason
        assert answer.usage.prompt_tokens == prompt.shape[1]
        if "Denmark" in what:
            assert "Copenhagen" in choice.message.content
        with torch.no_grad():
            both = torch.cat([prompt, torch.tensor([tokens])], 1)
            rows = model(both).logits[0, prompt.shape[1] - 1:-1].log_softmax(-1)
        content = choice.logprobs.content
        assert b"".join(bytes(entry.bytes) for entry in content).decode() == wanted, "bytes are not the text"
        found = torch.tensor([entry.logprob for entry in content])
        assert_close(check, found, rows.gather(1, torch.tensor(tokens)[:, None])[:, 0])
        found = torch.tensor([[top.logprob for top in entry.top_logprobs] for entry in content])
        assert_close(check, found, rows.topk(2).values)
    with report.check(f"serve: chat {what!r} as a stream → transformers") as check:
        chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
        assert chunks[0].choices[0].delta.role == "assistant" and text == wanted, text
        assert chunks[-1].usage.prompt_tokens == prompt.shape[1] and len(chunks) >= len(tokens) // 2
        check.of, check.count = "tokens", len(tokens)
    with report.check(f"serve: chat {what!r} with content parts and a stop") as check:
        parts = [message | {"content": [{"type": "text", "text": message["content"]}]} for message in messages]
        proxy = wanted.split()[2]
        answer = client.chat.completions.create(**asked | {"messages": parts}, stop=[proxy])
        assert answer.choices[0].message.content == wanted[:wanted.index(proxy)], answer.choices[0].message
        assert answer.choices[0].finish_reason == "stop"
        check.of, check.count = "texts", 1


async def together(server, wanted):
    async with server.client(openai.AsyncOpenAI) as client:
        asked = [client.chat.completions.create(model="smollm2", messages=messages, max_tokens=48, temperature=0)
                 for messages, _ in wanted]
        for answer, (_, text) in zip(await asyncio.gather(*asked), wanted):
            assert answer.choices[0].message.content == text, answer.choices[0].message
    return len(wanted)


def crowds(report, server, messages, answer):
    """One long generation, a queue of eight requests, and more."""
    client = server.client()
    ask = {"model": "smollm2", "messages": messages, "max_tokens": 48, "temperature": 0}
    long = client.completions.create(
        model="smollm2", prompt="Once upon a time", max_tokens=4000, stream=True, extra_body={"ignore_eos": True})
    next(long)
    with report.check("serve: more requests than the queue holds → openai.RateLimitError") as check:
        ends = asyncio.run(crowd(server, ask, 10))
        assert ends == ["RateLimitError"] * 2 + ["Timeout"] * 8, ends
        check.of, check.count = "requests", len(ends)
    with report.check("serve: cancelled requests leave the queue") as check:
        time.sleep(1)
        ends = asyncio.run(crowd(server, ask, 2))
        assert ends == ["Timeout"] * 2, ends
        check.of, check.count = "requests", len(ends)
    with report.check("serve: an abandoned stream leaves the server") as check:
        long.close()
        # The long generation would take minutes.
        patient = client.with_options(max_retries=4)
        assert patient.chat.completions.create(**ask).choices[0].message.content == answer
        check.of, check.count = "requests", 1


async def crowd(server, ask, count):
    """Outcomes of concurrent requests with a time limit of two seconds."""
    async with server.client(openai.AsyncOpenAI) as client:
        asked = [client.with_options(timeout=2).chat.completions.create(**ask) for _ in range(count)]
        ends = await asyncio.gather(*asked, return_exceptions=True)
    return sorted("Timeout" if isinstance(end, openai.APITimeoutError) else type(end).__name__ for end in ends)
