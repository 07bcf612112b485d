"""`shardloom serve`, driven by OpenAI's own client."""

import contextlib
import http.client
import json
import os
import signal
import subprocess

import openai
import torch

from said import TOLERANCE
from check_smollm2 import file
from tiny import BUILT_IN, PROMPT, decided, logits, save, text

SECONDS = 120
KEY = "a key for this check alone"


def run(place, ours, report):
    model, chosen = decided(*BUILT_IN["llama"])
    folder = save(model, place / "tiny")
    with served(ours, folder, {"SHARDLOOM_API_KEY": KEY}) as (url, process):
        client = openai.OpenAI(base_url=url, api_key=KEY, timeout=SECONDS, max_retries=0)
        completions(report, client, model, chosen)
        mistakes(report, client, url)
        malformed(report, client, url)
        with report.check("serve ends when it is told to") as check:
            process.send_signal(signal.SIGTERM)
            assert process.wait(SECONDS) == 0, f"it ended with {process.returncode}"
            check.of, check.count = "servers", 1
    with served(ours, file(), {}) as (url, _):
        chat(report, openai.OpenAI(base_url=url, api_key="none", timeout=SECONDS, max_retries=0))


@contextlib.contextmanager
def served(ours, model, environment):
    """The address of a server, and its process."""
    clean = {name: value for name, value in os.environ.items() if name != "SHARDLOOM_API_KEY"}
    command = [ours.shardloom, "--json", "serve", str(model), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean | environment)
    try:
        line = process.stdout.readline()
        assert line, f"it does not start: {process.stderr.read()}"
        yield json.loads(line)["url"], process
    finally:
        process.kill()
        process.wait()


def completions(report, client, model, chosen):
    (served_model,) = client.models.list().data
    name = served_model.id
    with report.check("openai: models") as check:
        assert client.models.retrieve(name).id == name
        check.of, check.count = "models", 1
    given = {"model": name, "prompt": text(PROMPT), "temperature": 0, "extra_body": {"ignore_eos": True}}
    with report.check("openai: completions → transformers") as check:
        answer = client.completions.create(max_tokens=len(chosen), **given)
        assert answer.choices[0].text.split() == text(chosen).split(), answer.choices[0].text
        assert answer.choices[0].finish_reason == "length" and answer.usage.completion_tokens == len(chosen)
        tokens = client.completions.create(max_tokens=len(chosen), **(given | {"prompt": PROMPT}))
        assert tokens.choices[0].text == answer.choices[0].text, "tokens as a prompt say something else"
        both = client.completions.create(max_tokens=4, **(given | {"prompt": [text(PROMPT), text(PROMPT[:3])]}))
        assert both.choices[0].text.split() == text(chosen[:4]).split() and len(both.choices) == 2
        parts = client.completions.create(max_tokens=len(chosen), stream=True, **given)
        streamed = "".join(part.choices[0].text for part in parts if part.choices)
        assert streamed == answer.choices[0].text, "a stream says something else"
        stopped = client.completions.create(max_tokens=len(chosen), stop=f" {text(chosen[2:3])}", **given)
        assert stopped.choices[0].finish_reason == "stop" and len(stopped.choices[0].text.split()) <= 3
        drawn = [client.completions.create(max_tokens=8, n=2, seed=5, **(given | {"temperature": 1.0})) for _ in range(2)]
        assert drawn[0].choices[0].text == drawn[1].choices[0].text, "a seed does not decide"
        check.of, check.count = "tokens", len(chosen)
    with report.check("openai: log-probabilities of a prompt → transformers") as check:
        answer = client.completions.create(max_tokens=0, echo=True, logprobs=5, **given).choices[0]
        rows = logits(model, PROMPT)[:-1].float().log_softmax(-1)
        wanted = rows.gather(1, torch.tensor(PROMPT[1:])[:, None])[:, 0]
        found = answer.logprobs.token_logprobs
        assert found[0] is None and len(found) == len(PROMPT), found
        away = float((torch.tensor(found[1:]) - wanted).abs().max())
        assert away <= TOLERANCE, f"log-probabilities are {away:.1e} apart"
        for place, row in zip(answer.logprobs.top_logprobs[1:], rows):
            best = max(place.values())
            assert len(place) >= 5 and abs(best - float(row.max())) <= TOLERANCE, place
        check.of, check.count = "log-probabilities", len(PROMPT) - 1


def mistakes(report, client, url):
    name = client.models.list().data[0].id
    given = {"model": name, "prompt": "t1"}
    asked = {
        "an unknown model": (openai.NotFoundError, given | {"model": "other"}),
        "a temperature below 0": (openai.BadRequestError, given | {"temperature": -1}),
        "too many log-probabilities": (openai.BadRequestError, given | {"logprobs": 1000}),
        "more tokens than there are positions": (openai.BadRequestError, given | {"max_tokens": 10**9}),
        "tokens that there are not": (openai.BadRequestError, given | {"prompt": [10**6]}),
    }
    for what, (kind, request) in asked.items():
        with report.check(f"openai: {what}") as check:
            check.of, check.count = "errors", 1
            expect(kind, lambda request=request: client.completions.create(**request))
    with report.check("openai: a chat with a model that has no template") as check:
        check.of, check.count = "errors", 1
        messages = [{"role": "user", "content": "t1"}]
        expect(openai.BadRequestError, lambda: client.chat.completions.create(model=name, messages=messages))
    with report.check("openai: a wrong key") as check:
        check.of, check.count = "errors", 1
        other = openai.OpenAI(base_url=url, api_key="another key", max_retries=0)
        expect(openai.AuthenticationError, other.models.list)


def expect(kind, call):
    try:
        call()
    except kind as error:
        assert error.message, "it does not say what is wrong"
    else:
        raise AssertionError(f"no {kind.__name__}")


def malformed(report, client, url):
    """Whatever comes, the next request is answered."""
    host = url.removeprefix("http://").removesuffix("/v1")
    bodies = [
        b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"model": 1}', b'{"prompt": {"a": 1}}', b'{"prompt": "t1", "max_tokens": "x"}',
        b'{"prompt": "t1", "max_tokens": 1e400}', b"[" * 5000, b'{"prompt": "' + b"t1 " * 10**5 + b'"}', b'{"prompt": [[]]}',
        b'{"prompt": "t1", "n": 100000}', b'{"prompt": "t1", "stop": [1]}', b'{"messages": []}', b'{"messages": [{"role": 1}]}',
    ]
    with report.check("serve lives through malformed requests") as check:
        check.of = "requests"
        for path in ("/v1/completions", "/v1/chat/completions", "/v1/nothing"):
            for body in bodies:
                connection = http.client.HTTPConnection(host, timeout=SECONDS)
                headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
                connection.request("POST", path, body, headers)
                answer = connection.getresponse()
                told = json.loads(answer.read())
                assert 400 <= answer.status < 500 and told["error"]["message"], (path, body[:40], answer.status, told)
                check.count += 1
        assert client.models.list().data, "it answers no longer"


def chat(report, client):
    name = client.models.list().data[0].id
    messages = [{"role": "user", "content": "What is the capital of Denmark? Answer in one sentence."}]
    given = {"model": name, "messages": messages, "temperature": 0, "max_tokens": 32}
    with report.check("openai: a chat with SmolLM2") as check:
        answer = client.chat.completions.create(logprobs=True, top_logprobs=2, **given).choices[0]
        assert "Copenhagen" in answer.message.content and answer.finish_reason == "stop", answer
        parts = client.chat.completions.create(stream=True, **given)
        streamed = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
        assert streamed == answer.message.content, "a stream says something else"
        check.of, check.count = "tokens", len(answer.logprobs.content)
