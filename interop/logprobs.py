"""Log-probabilities of all tokens at all positions, and greedy generations."""

import torch

from tiny_models import NEW_TOKENS, PROMPT, logits, text

# The order of additions changes about 1e-5; an ignored setting changes at least 1e-2.
TOLERANCE = 1e-4


def expected(model, tokens=PROMPT):
    """Log-probabilities by transformers: one row per token but the first, given the tokens before it."""
    return logits(model, tokens)[:-1].float().log_softmax(-1)


def scored(ours, name, *options, tokens=PROMPT, words=101):
    """Log-probabilities by `weightloom score`."""
    answer = ours.call("score", name, text(tokens), "--top", words, *options)["tokens"]
    assert [entry["token"] for entry in answer] == tokens, "the text has other tokens"
    rows = torch.full((len(tokens) - 1, words), torch.nan, dtype=torch.float64)
    for row, entry in zip(rows, answer[1:]):
        likeliest = [value for _, value in entry["likeliest"]]
        assert likeliest == sorted(likeliest, reverse=True), "the likeliest tokens are not sorted"
        for token, value in entry["likeliest"]:
            row[token] = value
        assert row[entry["token"]] == entry["log_probability"], "a token has two log-probabilities"
    assert not rows.isnan().any(), "tokens are missing from the list"
    return rows.float()


def assert_close(check, found, wanted, tolerance=TOLERANCE):
    check.of, check.count = "log-probabilities", wanted.numel()
    assert found.shape == wanted.shape, f"{tuple(found.shape)} is not {tuple(wanted.shape)}"
    away = float((found - wanted).abs().max())
    assert away <= tolerance, f"log-probabilities are {away:.1e} apart"


def generated(ours, name, *options, prompt=None, tokens=NEW_TOKENS):
    """Greedy tokens by `weightloom generate`."""
    answer = ours.call("generate", name, text(PROMPT) if prompt is None else prompt, "--max-new-tokens", tokens, *options)
    return answer["tokens"]


def same_tokens(check, found, wanted):
    check.of, check.count = "tokens", len(wanted)
    apart = [i for i, (one, other) in enumerate(zip(found, wanted)) if one != other]
    assert not apart, f"tokens differ from the {apart[0] + 1}th on: {found} is not {wanted}"
    assert len(found) == len(wanted), f"{len(found)} tokens instead of {len(wanted)}"
