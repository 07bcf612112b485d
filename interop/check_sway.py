"""Suites that ask servers: llama-cpp-python's, llama.cpp's own, and ours, compared with our own engine.

All have the same weights, in f32: a tiny model as GGUF, and the same with an adapter merged into it. Our own engine
has the model and the adapter. Numbers are compared in `reference` mode, where both sides list the 20 likeliest tokens;
in `paired` mode our engine compares whole distributions, which no server tells.
"""

import json
import os
import signal
import subprocess
import warnings

from gguf import GGMLQuantizationType as Kind
from peft import LoraConfig, get_peft_model

from check_gguf import write_llama
from serving import between, llama_cpp_python, llama_server, served
from tiny import build, fill, fill_adapter, rope

KEY = "tulip-and-crocus-7"
SECONDS = 120
# Of a number, where it is above 1. All compute in f32: our own server is about 1e-6 away, the others, which add in
# another order, 1e-5. A wrong row or token changes whole nats, 16 bits somewhere on the way 3e-4.
TOLERANCE = 1e-4
# What a server is asked before a run: a next token, and three times one with its echo.
TRIAL = 7

CORPUS = """Rain fell on the old harbor all morning, and the boats lay close together. A man carried rope along the pier.
He counted the knots as he went, and lost the count twice. Nobody asked him for the number.

In the afternoon the wind turned to the north. Two sails went out, and one came back before dark with a torn edge.
The baker kept a light in the window until the second sail was seen behind the point."""
DOCUMENT = """# Looms

A loom holds the warp under tension, so that the weft can be passed between its threads. The width of the cloth is the
width of the reed, and the reed is changed before the warp is.

# Shuttles

A shuttle carries the weft from one edge to the other. It is thrown by hand, and caught by the other hand. A shuttle
that is thrown too hard wears the edge of the cloth.

# Dyes

Madder gives red, woad gives blue, and weld gives yellow. Green is woad over weld; the blue comes last, since the air
must reach it before it shows.
"""
PROMPTS = ["The loom is", "A shuttle carries", "Green is", "On the pier", "Nobody asked", "The wind turned to"]
ITEMS = [["The sky is", " blue"], ["Fire is", " hot"], ["Two and two are", " four"], ["A day has", " hours"],
         ["Snow is", " white"], ["Fish live in", " water"], ["The sun is", " bright"], ["Bees make", " honey"]]
TRIPLES = [{"prompt": f"Which is better, {one} or {other}?", "chosen": f" {one}", "rejected": f" {other}"}
           for one, other in [("red", "blue"), ("wool", "flax"), ("north", "south"), ("rain", "snow"), ("rope", "sail")]]
CASES = [
    {"prompt": "What gives red?", "gold": " Madder gives red.", "paraphrases": ["Where is red from?", "Red is from what?"]},
    {"prompt": "What gives blue?", "gold": " Woad gives blue.", "paraphrases": ["Where is blue from?"]},
    {"prompt": "What holds the warp?", "gold": " A loom does.", "paraphrases": ["The warp is held by what?"]},
]
# What every server can answer that tells the likeliest tokens and writes.
PLAIN = [
    {"name": "change", "kind": "delta_kl", "prompts": PROMPTS},
    {"name": "fading", "kind": "prompt_collapse", "prompts": PROMPTS[:2], "context_lengths": [0, 32, 64],
     "legacy_stuffing": True},
    {"name": "style", "kind": "style_fingerprint", "prompts": PROMPTS[:3], "max_new_tokens": 24},
    {"name": "recital", "kind": "leakage", "prefix_chars": 40, "continuation_chars": 60, "max_new_tokens": 16},
]
# What needs to know how likely given texts are, behind others...
SCORED = [
    {"name": "drift", "kind": "calibration_drift", "items": ITEMS},
    {"name": "choices", "kind": "preference_flip", "triples": TRIPLES},
    {"name": "ways", "kind": "paraphrase_invariance", "cases": CASES},
]
# ...and by themselves.
WHOLE = [
    {"name": "neutral", "kind": "external_perplexity", "chunk_chars": 200, "max_chunks": 2},
    {"name": "sections", "kind": "section_internalization"},
]
# What no server can answer.
BEYOND = [
    {"name": "noise", "kind": "null_adapter"},
    {"name": "topics", "kind": "cluster_kl", "prompts": PROMPTS, "num_clusters": 2, "min_prompts": 4},
    {"name": "strength", "kind": "adapter_ablation", "prompts": PROMPTS},
    {"name": "revert", "kind": "adapter_revert", "cases": CASES, "max_new_tokens": 8},
]


def run(place, ours, report):
    files = models(place)
    (place / "document.md").write_text(DOCUMENT)
    (place / "packs.json").write_text(json.dumps({"external_corpus_public_domain_en": CORPUS}))
    engine = Judge(place, ours, {"base": {"base": str(files["base"]), "dtype": "fp32"},
                                 "ft": {"base": str(files["base"]), "adapter": str(files["adapter"]), "dtype": "fp32"}})
    wanted = by_name(engine.judged(PLAIN + SCORED + WHOLE))
    served_by_us(place, ours, report, files, wanted)
    served_by_llama_cpp_python(place, ours, report, files, wanted)
    served_without_echo(place, ours, report, files, wanted)
    killed(place, ours, report, files)


def words():
    """Letters, and pairs of them: tokens of one, two, three and four letters."""
    letters = [chr(code) for code in range(33, 127)] + ["Ġ", "Ċ"]
    merges = ["t h", "th e", "Ġ the", "i n", "in g", "a n", "an d", "Ġ and", "e r", "o n", "Ġ w", "o u", "Ġ b", "l o",
              "h e", "r e", "Ġ s", "e d"]
    return ["<s>", "</s>", *letters, *(merge.replace(" ", "") for merge in merges)], merges


def add_words(writer, begins):
    tokens, merges = words()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3] + [1] * (len(tokens) - 2))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(begins)


def models(place):
    """The files: a model, the same tuned, an adapter that makes one of the other, and the model without a token that
    begins texts.
    """
    sizes = {"vocab_size": len(words()[0]), "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
             "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
             "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 1}
    model = build("llama", sizes | rope(10000.0))
    fill(model, 7)
    # Tokens that stand for no text are never likely: servers differ in what they call them.
    model.lm_head.weight.data[:2] = 0
    files = {name: place / f"{name}.gguf" for name in ("base", "tuned", "unmarked")} | {"adapter": place / "adapter"}
    def write(name, begins):
        write_llama(files[name], model, lambda _: Kind.F32, lambda writer: add_words(writer, begins))
    write("base", True)
    write("unmarked", False)
    with warnings.catch_warnings(action="ignore"):
        config = LoraConfig(r=3, lora_alpha=5, task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj", "down_proj"])
        tuned = get_peft_model(model, config).eval()
        fill_adapter(tuned, 11)
        tuned.save_pretrained(files["adapter"])
        model = tuned.merge_and_unload()
    write("tuned", True)
    return files


class Judge:
    """Runs suites with two models, and keeps answers in a folder of its own."""

    def __init__(self, place, ours, models, cache="cache"):
        self.place, self.ours, self.models, self.cache = place, ours, models, place / cache
        self.seen = ""

    def started(self, entries, *options, **defaults):
        """Ends as it may."""
        settings = {"statistics": "reference", "top_k": 20, "packs": "packs.json"} | defaults
        suite = {"version": 1, "models": self.models, "defaults": settings, "suite": entries, "dlm_source": "document.md"}
        (self.place / "sway.yaml").write_text(json.dumps(suite))
        command = [self.ours.weightloom, "sway", "run", str(self.place / "sway.yaml"), "--json", *options]
        environment = os.environ | {"SWAY_API_KEY": KEY, "WEIGHTLOOM_CACHE_DIR": str(self.cache)}
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=environment)
        self.seen += done.stdout + done.stderr
        return done

    def judged(self, entries, *options, **defaults):
        """A report."""
        done = self.started(entries, *options, **defaults)
        assert done.returncode == 0, f"it ended with {done.returncode}: {done.stderr.strip()}"
        return json.loads(done.stdout)


def at(*models):
    """Models of servers, as suites name them."""
    return {side: {"kind": "api", "base": name, "endpoint": root} for side, (root, name) in zip(("base", "ft"), models)}


def by_name(report):
    return {probe["name"]: probe for probe in report["probes"]}


def compare(check, found, wanted, names):
    """All that entries measured, down to their evidence."""
    found = by_name(found)
    check.of = "numbers"
    for name in names:
        for key in ("verdict", "raw", "base_value", "ft_value", "ci_95", "evidence"):
            check.count += near(found[name].get(key), wanted[name].get(key), f"{name}.{key}")


def near(found, wanted, where, tolerance=TOLERANCE):
    """How many numbers were compared."""
    if isinstance(wanted, dict):
        assert isinstance(found, dict) and found.keys() == wanted.keys(), f"{where}: {found} is not {wanted}"
        return sum(near(found[key], wanted[key], f"{where}.{key}", tolerance) for key in wanted)
    if isinstance(wanted, list):
        assert isinstance(found, list) and len(found) == len(wanted), f"{where}: {found} is not {wanted}"
        return sum(near(one, other, f"{where}[{i}]", tolerance) for i, (one, other) in enumerate(zip(found, wanted)))
    if isinstance(wanted, float) and isinstance(found, (int, float)):
        away = abs(found - wanted) / max(1.0, abs(wanted))
        assert away <= tolerance, f"{where}: {found} is {away:.1e} away from {wanted}"
        return 1
    assert found == wanted, f"{where}: {found!r} is not {wanted!r}"
    return 0


def told(check, report):
    """Limits stand in the report, and nothing failed."""
    backend = report["backend"]
    assert backend["kind"] == "api" and "differential" in backend["capabilities"], backend
    assert "full_vocabulary" not in backend["capabilities"], backend
    assert any("at most 20 next tokens" in note for note in backend["notes"]), backend["notes"]
    for probe in report["probes"]:
        assert probe["verdict"] != "error", f"{probe['name']}: {probe['message']}"
        check.count += 1
    check.of = "entries"


def served_by_us(place, ours, report, files, wanted):
    adapter = ("--adapter", files["adapter"], "--served-name", "tuned")
    with served(ours, files["base"], "--served-name", "base", WEIGHTLOOM_API_KEY=KEY) as base, \
            served(ours, files["base"], *adapter, WEIGHTLOOM_API_KEY=KEY) as tuned:
        judge = Judge(place, ours, at((base.url, "base"), (tuned.url, "tuned")), "cache-ours")
        with report.check("sway: weightloom serve → our own engine") as check:
            compare(check, judge.judged(PLAIN + SCORED + WHOLE), wanted, wanted.keys())
        paired(report, judge, "weightloom serve")
        secrets(report, judge, "weightloom serve")


def paired(report, judge, what):
    with report.check(f"sway: {what}, paired: what servers can do is judged, the rest is skipped") as check:
        found = judge.judged(PLAIN + SCORED + WHOLE + BEYOND, statistics="paired")
        told(check, found)
        skipped = {probe["name"] for probe in found["probes"] if probe["verdict"] == "skip"}
        assert skipped == {entry["name"] for entry in BEYOND}, skipped
        raws = [probe["raw"] for probe in found["probes"] if probe["name"] not in skipped]
        assert all(isinstance(raw, float) for raw in raws), raws


def secrets(report, judge, what):
    with report.check(f"sway: {what}: the key is nowhere") as check:
        kept = [path for path in judge.cache.rglob("*") if path.is_file()]
        assert kept, "no answers are kept"
        for text in (judge.seen.encode(), *(path.read_bytes() for path in kept)):
            assert KEY.encode() not in text
        check.of, check.count = "texts", 1 + len(kept)


def served_by_llama_cpp_python(place, ours, report, files, wanted):
    served = {name: files[name] for name in ("base", "tuned", "unmarked")}
    with llama_cpp_python(place / "llama.json", served, KEY) as root:
        judge = Judge(place, ours, at((root, "base"), (root, "tuned")), "cache-llama")
        with report.check("sway: llama-cpp-python → our own engine") as check:
            found = judge.judged(PLAIN + SCORED + WHOLE)
            compare(check, found, wanted, [entry["name"] for entry in PLAIN + SCORED])
        with report.check("sway: llama-cpp-python, whole texts → score") as check:
            whole_texts(check, ours, files, by_name(found))
        paired(report, judge, "llama-cpp-python")
        secrets(report, judge, "llama-cpp-python")
        with report.check("sway: llama-cpp-python tells the wrong rows of texts that no token begins, and is found out") as check:
            wrong = Judge(place, ours, at((root, "base"), (root, "unmarked")), "cache-unmarked")
            one_side_is_mute(check, wrong.judged(PLAIN + SCORED + WHOLE), "its `echo` is wrong")


def whole_texts(check, ours, files, found):
    """The server tells nothing of the first token behind the one that begins texts, so it does not count there."""

    def surprise(text, *options):
        tokens = ours.call("score", files["base"], text, *options)["tokens"]
        return -sum(token["log_probability"] for token in tokens[2:]) / (len(tokens) - 2)

    def both(text):
        return surprise(text), surprise(text, "--adapter", files["adapter"])

    lines = "\n\n".join(line.strip() for line in CORPUS.splitlines() if line.strip())
    pieces = [both(lines[start:start + 200]) for start in range(0, len(lines), 200)][:2]
    changes = [base - tuned for base, tuned in pieces]
    check.of = "numbers"
    check.count += near(found["neutral"]["evidence"]["per_chunk_delta"], changes, "neutral")
    sections = [section.split("\n", 1)[1].strip() for section in DOCUMENT.split("# ")[1:]]
    told = found["sections"]["evidence"]["per_section"]
    for section, told in zip(sections, told, strict=True):
        base, tuned = both(section)
        check.count += near([told["base_nll"], told["ft_nll"]], [base, tuned], "sections")


def one_side_is_mute(check, report, why):
    """What needs no echo is judged, the rest is an error that says what is missing."""
    notes = [note for note in report["backend"]["notes"] if "cannot tell how likely given texts are" in note]
    assert len(notes) >= 1 and why in notes[0], report["backend"]["notes"]
    plain = {entry["name"] for entry in PLAIN}
    for probe in report["probes"]:
        failed = probe["verdict"] == "error"
        assert failed == (probe["name"] not in plain), f"{probe['name']}: {probe['verdict']}, {probe['message']}"
        assert not failed or why in probe["message"] and "`weightloom serve`" in probe["message"], probe["message"]
        check.count += 1
    check.of = "entries"


def served_without_echo(place, ours, report, files, wanted):
    with llama_server(files["base"], "base") as base, llama_server(files["tuned"], "tuned") as tuned:
        judge = Judge(place, ours, at((base, "base"), (tuned, "tuned")), "cache-mute")
        with report.check("sway: llama.cpp's server → our own engine") as check:
            found = judge.judged(PLAIN + SCORED + WHOLE)
            compare(check, found, wanted, [entry["name"] for entry in PLAIN])
        with report.check("sway: llama.cpp's server has no echo, and that is told") as check:
            one_side_is_mute(check, found, "echo")


def killed(place, ours, report, files):
    """The base stays, the tuned model's server is killed in the middle and comes back somewhere else."""
    entries = PLAIN + SCORED + WHOLE
    options = ("--served-name", "tuned", "--adapter", files["adapter"])
    with served(ours, files["base"], "--served-name", "base") as base, \
            served(ours, files["base"], *options) as first, between(first.url) as (middle, root):
        judge = Judge(place, ours, at((base.url, "base"), (root, "tuned")), "cache-killed")
        undisturbed = judge.judged(entries, "--no-cache")
        whole = middle.asked
        with report.check("sway: a server killed in the middle of a run is a clear error") as check:
            middle.when(whole + whole // 2, first.process.kill)
            done = judge.started(entries)
            assert done.returncode == 3, f"it ended with {done.returncode}: {done.stderr}"
            assert not done.stdout, done.stdout
            assert f"{root} was asked 5 times" in done.stderr, done.stderr
            assert "see whether the server runs" in done.stderr and "run it again to go on" in done.stderr, done.stderr
            kept = int(done.stderr.split(" new answers are kept")[0].split()[-1])
            assert kept >= whole // 2, f"{kept} answers are kept"
            check.of, check.count = "kept answers", kept
            assert first.process.wait(SECONDS) == -signal.SIGKILL
        answered = middle.answered - whole
        with report.check("sway: a run behind it asks what is missing, and reports the same") as check:
            with served(ours, files["base"], *options) as second:
                middle.target, middle.asked = second.url, 0
                again = judge.judged(entries)
            assert middle.asked == whole - answered + TRIAL, f"{middle.asked} requests, {answered} of {whole} answered"
            check.of, check.count = "requests", middle.asked
            near(stable(again), stable(undisturbed), "report", 0.0)
        with report.check("sway: a third run asks nothing, though no server is left") as check:
            middle.asked = 0
            third = judge.judged(entries)
            assert middle.asked == 0
            near(stable(third), stable(undisturbed), "report", 0.0)
            check.of, check.count = "entries", len(third["probes"])


def stable(report):
    """What does not depend on when and how long."""
    report = {key: value for key, value in report.items()
              if key not in ("started_at", "finished_at", "wall_seconds", "backend_stats")}
    report["probes"] = [{key: value for key, value in probe.items() if key != "duration_s"} for probe in report["probes"]]
    return report
