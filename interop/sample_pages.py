"""Pages of real runs: with all probes, hostile texts, failures, and very many probes.

The model is tiny and untrained, so its verdicts are meaningless, but every section of a page has content.
"""

import json
import pathlib

from weightloom_cli import output

TINY = pathlib.Path(__file__).parent.parent / "crates/sway/tests/fixtures/tiny"
PROMPTS = [
    "The quick brown fox", "Once upon a time", "In my opinion,", "The capital of France", "Two plus two",
    "Water boils at", "A week has seven", "Winter is colder than",
]
SECTIONS = {
    "Harbours": "A harbour keeps ships from the wind. Its wall is older than the town, and stands on oak.",
    "Tides and how long they take": "Twice a day the water comes, and twice it goes. The moon is late by an hour.",
    "Ropes": "A rope of hemp swells in the wet. Nobody ties it twice in the same way, and no knot is forgotten.",
    "Signals": "Two flags say danger. A lamp that blinks says the same to all who cannot see flags at night.",
    "Weather": "Clouds that stand like towers bring thunder. A red evening is no promise, whatever people say.",
}
SCRIPT = "<script>document.title = 'taken'</script><img src=x onerror=\"document.title = 'taken'\">"
HOSTILE = {
    "markup": f"</title></style></svg>{SCRIPT}",
    "quotes": "\"double\" 'single' `back` & &amp; &lt; %22 {{ page }} {% if %}",
    "a long word": "Donaudampfschifffahrt" * 20,
    "right to left": "\u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627 \u202eback to front\u202d 123",
    "emoji": "\U0001f469\u200d\U0001f680\U0001f3f3\ufe0f\u200d\U0001f308 e\u0301\u0301\u0301 \ufffd",
    "control": "bell\x07 escape\x1b[31m delete\x7f next\x85 tab\t end",
    "combining": "Z" + "\u0351\u0332" * 60,
}


def full(place, ours, statistics="paired"):
    """Runs a suite with all thirteen probes; returns its report and page."""
    return judged(place, ours, f"full-{statistics}", thirteen(PROMPTS), SECTIONS, "--statistics", statistics)


def thirteen(prompts, name="{}".format):
    cases = [{"prompt": prompt, "gold": " of the harbour", "paraphrases": [f"Say it: {prompt}", f"{prompt}, then"]}
             for prompt in prompts[:4]]
    triples = [{"prompt": prompt, "chosen": " a ship", "rejected": " a town far away"} for prompt in prompts]
    few = prompts[:4]
    entries = [
        ("noise", "null_adapter", {}),
        ("next_tokens", "delta_kl", {"prompts": prompts}),
        ("falling_back", "adapter_revert", {"cases": cases, "max_new_tokens": 12}),
        ("long_contexts", "prompt_collapse", {"prompts": few, "context_lengths": [0, 32, 64, 128, 256]}),
        ("subjects", "cluster_kl", {"prompts": prompts, "min_prompts": 4, "num_clusters": 2}),
        ("sections", "section_internalization", {}),
        ("other_words", "paraphrase_invariance", {"cases": cases}),
        ("preferences", "preference_flip", {"triples": triples}),
        ("style", "style_fingerprint", {"prompts": few, "max_new_tokens": 24}),
        ("general_knowledge", "calibration_drift", {"items_limit": 30}),
        ("recital", "leakage", {"prefix_chars": 32, "continuation_chars": 48, "max_new_tokens": 16}),
        ("other_texts", "external_perplexity", {"max_chunks": 4, "chunk_chars": 256}),
        ("strength", "adapter_ablation", {"prompts": few}),
    ]
    return [{"name": name(label), "kind": kind} | fields for label, kind, fields in entries]


def hostile(place, ours):
    """Runs the suite with hostile texts in prompts, names, sections and the report."""
    texts = list(HOSTILE.values())
    prompts = [*texts, "an ordinary one"]
    sections = {text: f"{text} is what this section is about, and it says so at some length. {text}" for text in texts}
    report, page = judged(place, ours, "hostile", thirteen(prompts, f"{{}} {SCRIPT}".format), sections)
    found = json.loads(report.read_text())
    # Generated texts and messages of servers are untrusted.
    for number, probe in enumerate(found["probes"]):
        text = texts[number % len(texts)]
        probe["message"] += f" {text}"
        for pair in probe["evidence"].get("generations", []):
            pair["base"] += f" {text} one"
            pair["ft"] += f" {text} other"
    found |= {"base_model_id": SCRIPT, "adapter_id": f"{texts[1]}/{texts[3]}/{texts[2]}", "notes": texts}
    found["warnings"] = texts
    found["score"]["findings"] += texts
    return shown(place, ours, "hostile-report", found)


def damaged(place, ours):
    """A report that proves damage: most facts lost, neutral text less likely, and a chat with its texts."""
    report, _ = judged(place, ours, "damage", [
        {"name": "change", "kind": "delta_kl", "prompts": PROMPTS},
        {"name": "sections", "kind": "section_internalization"},
        {"name": "facts", "kind": "calibration_drift"},
        {"name": "neutral text", "kind": "external_perplexity", "chunk_chars": 256},
        {"name": "style", "kind": "style_fingerprint", "prompts": PROMPTS, "max_new_tokens": 24},
    ], SECTIONS)
    found = json.loads(report.read_text())
    probes = {probe["name"]: probe for probe in found["probes"]}
    for name, loss in (("facts", 2.5), ("neutral text", 2.2)):
        probe = probes[name]
        items = probe["evidence"]["items"]
        for number, item in enumerate(items):
            lost = name == "neutral text" or number < 120
            item["tuned"] = item["base"] - (loss + number % 7 / 10 if lost else number % 5 / 20)
        probe |= {"verdict": "fail", "raw": -2.2, "ci_95": [-2.4, -2.0], "score": 0.0}
    probes["facts"] |= {"raw": 0.6, "ci_95": [0.528, 0.668], "message": "lost 120 of 200 facts; limit 30"}
    probes["neutral text"]["message"] = "unrelated text lost 2.2 nats per token; limit 0.1"
    for number, item in enumerate(probes["sections"]["evidence"]["items"]):
        item["tuned"] = item["base"] * (0.2 + number / 20)
    # The verdict follows from the records when the report is read.
    probes["change"] |= {"verdict": "pass", "message": "next-token predictions moved by 0.31 nats; noise by at most 0.02"}
    probes["sections"] |= {"verdict": "pass", "message": "the loss of sections dropped by 68.6 %; under noise by at most 1.2 %"}
    return shown(place, ours, "damage-report", found)


def failed(place, ours):
    """All probes fail."""
    suite = [{"name": f"{kind} without prompts", "kind": kind}
             for kind in ("delta_kl", "adapter_ablation", "prompt_collapse")]
    return judged(place, ours, "failed", suite, {})


def empty(place, ours):
    """No probes."""
    return judged(place, ours, "empty", [], {})


def many(place, ours, number=200):
    suite = [{"name": f"question {entry}", "kind": "delta_kl", "prompts": PROMPTS[entry % 7:entry % 7 + 2]}
             for entry in range(number)]
    return judged(place, ours, "many", suite, {})


def judged(place, ours, name, suite, sections, *options):
    folder = place / name
    folder.mkdir()
    file, report, page = folder / "sway.yaml", folder / "report.json", folder / "page.html"
    base = {"base": str(TINY / "model")}
    described = {"models": {"base": base, "ft": base | {"adapter": str(TINY / "adapter")}}, "suite": suite}
    if sections:
        (folder / "document.md").write_text("".join(f"# {title}\n\n{text}\n\n" for title, text in sections.items()))
        described["dlm_source"] = "document.md"
    # JSON is valid YAML.
    file.write_text(json.dumps(described))
    output([ours.weightloom, "sway", "run", file, "--no-cache", "--json", report, "--html", page, *options])
    return report, page


def shown(place, ours, name, found):
    """Renders the page of a report."""
    report, page = place / f"{name}.json", place / f"{name}.html"
    report.write_text(json.dumps(found))
    output([ours.weightloom, "sway", "report", report, "--format", "html", "--out", page])
    return report, page
