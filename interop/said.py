"""What a model says: log-probabilities of all tokens at all places, and tokens it writes."""

import torch

from tiny import NEW_TOKENS, PROMPT, logits, text

# What the order of additions changes is about 1e-5 here; a setting that is overlooked changes 1e-2 and more.
TOLERANCE = 1e-4


def expected(model, tokens=PROMPT):
    """By transformers, one row for each token but the first: what it thought before it saw that token."""
    return logits(model, tokens)[:-1].float().log_softmax(-1)


def scored(ours, name, *options, tokens=PROMPT, words=101):
    """The same by us."""
    answer = ours.call("score", name, text(tokens), "--top", words, *options)["tokens"]
    assert [place["token"] for place in answer] == tokens, "the text is other tokens"
    rows = torch.full((len(tokens) - 1, words), torch.nan, dtype=torch.float64)
    for row, place in zip(rows, answer[1:]):
        likeliest = [value for _, value in place["likeliest"]]
        assert likeliest == sorted(likeliest, reverse=True), "the likeliest do not come first"
        for token, value in place["likeliest"]:
            row[token] = value
        assert row[place["token"]] == place["log_probability"], "a token has two log-probabilities"
    assert not rows.isnan().any(), "tokens are missing among the likeliest"
    return rows.float()


def close(check, found, wanted, tolerance=TOLERANCE):
    check.of, check.count = "log-probabilities", wanted.numel()
    assert found.shape == wanted.shape, f"{tuple(found.shape)} is not {tuple(wanted.shape)}"
    away = float((found - wanted).abs().max())
    assert away <= tolerance, f"log-probabilities are {away:.1e} apart"


def written(ours, name, *options, prompt=None, tokens=NEW_TOKENS):
    """Tokens that we choose greedily."""
    answer = ours.call("generate", name, text(PROMPT) if prompt is None else prompt, "--max-new-tokens", tokens, *options)
    return answer["tokens"]


def agree(check, found, wanted):
    check.of, check.count = "tokens", len(wanted)
    apart = [i for i, (one, other) in enumerate(zip(found, wanted)) if one != other]
    assert not apart, f"tokens differ from the {apart[0] + 1}th on: {found} is not {wanted}"
    assert len(found) == len(wanted), f"{len(found)} tokens instead of {len(wanted)}"
