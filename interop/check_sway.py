"""Suites on API servers (llama-cpp-python, llama.cpp, `weightloom serve`), compared with the local backend.

All have the same weights in f32: a tiny model as GGUF, and the same with a merged adapter. The local backend has the
model and the adapter. Numbers are compared in `reference` mode, where both sides use the 20 likeliest tokens; in
`paired` mode the local backend compares full distributions, which no server returns.
"""

import json
import os
import signal
import subprocess
import warnings

from gguf import GGMLQuantizationType as Kind
from peft import LoraConfig, get_peft_model

from check_gguf import write_llama
from servers import proxied, llama_cpp_python, llama_server, serve
from tiny_models import build, fill, fill_adapter, rope

KEY = "tulip-and-crocus-7"
SECONDS = 120
# Relative above 1. All compute in f32: our server is about 1e-6 away, the others, which add in another order, 1e-5.
# A wrong row or token changes whole nats, 16-bit arithmetic somewhere 3e-4.
TOLERANCE = 1e-4
# Requests of the preflight check of a server: a next token, and three times one with its echo.
PREFLIGHT_REQUESTS = 7

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
# Probes for every server that returns the likeliest tokens and generates text.
PLAIN = [
    {"name": "change", "kind": "delta_kl", "prompts": PROMPTS},
    {"name": "fading", "kind": "prompt_collapse", "prompts": PROMPTS[:2], "context_lengths": [0, 32, 64],
     "legacy_stuffing": True},
    {"name": "style", "kind": "style_fingerprint", "prompts": PROMPTS[:3], "max_new_tokens": 24},
    {"name": "recital", "kind": "leakage", "prefix_chars": 40, "continuation_chars": 60, "max_new_tokens": 16},
]
# Probes that need the log-likelihood of completions...
SCORED = [
    {"name": "drift", "kind": "calibration_drift", "items": ITEMS},
    {"name": "choices", "kind": "preference_flip", "triples": TRIPLES},
    {"name": "ways", "kind": "paraphrase_invariance", "cases": CASES},
]
# ...and of whole texts.
WHOLE = [
    {"name": "neutral", "kind": "external_perplexity", "chunk_chars": 200, "max_chunks": 2},
    {"name": "sections", "kind": "section_internalization"},
]
# Probes that no server supports.
UNSUPPORTED = [
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


def vocabulary():
    """A BPE vocabulary with tokens of one to four letters."""
    letters = [chr(code) for code in range(33, 127)] + ["Ġ", "Ċ"]
    merges = ["t h", "th e", "Ġ the", "i n", "in g", "a n", "an d", "Ġ and", "e r", "o n", "Ġ w", "o u", "Ġ b", "l o",
              "h e", "r e", "Ġ s", "e d"]
    return ["<s>", "</s>", *letters, *(merge.replace(" ", "") for merge in merges)], merges


def add_tokenizer(writer, add_bos):
    tokens, merges = vocabulary()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3] + [1] * (len(tokens) - 2))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(add_bos)


def models(place):
    """The base, the tuned model, the adapter between them, and the base without a BOS token."""
    sizes = {"vocab_size": len(vocabulary()[0]), "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
             "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
             "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 1}
    model = build("llama", sizes | rope(10000.0))
    fill(model, 7)
    # Special tokens are never likely: servers differ in how they name them.
    model.lm_head.weight.data[:2] = 0
    files = {name: place / f"{name}.gguf" for name in ("base", "tuned", "unmarked")} | {"adapter": place / "adapter"}
    def write(name, add_bos):
        write_llama(files[name], model, lambda _: Kind.F32, lambda writer: add_tokenizer(writer, add_bos))
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
    """Runs suites on two models, with a separate cache of answers."""

    def __init__(self, place, ours, models, cache="cache"):
        self.place, self.ours, self.models, self.cache = place, ours, models, place / cache
        self.seen = ""

    def run(self, entries, *options, **defaults):
        """Runs a suite; returns the finished process."""
        settings = {"statistics": "reference", "top_k": 20, "packs": "packs.json"} | defaults
        suite = {"version": 1, "models": self.models, "defaults": settings, "suite": entries, "dlm_source": "document.md"}
        (self.place / "sway.yaml").write_text(json.dumps(suite))
        command = [self.ours.weightloom, "sway", "run", str(self.place / "sway.yaml"), "--json", *options]
        environment = os.environ | {"SWAY_API_KEY": KEY, "WEIGHTLOOM_CACHE_DIR": str(self.cache)}
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=environment)
        self.seen += done.stdout + done.stderr
        return done

    def judged(self, entries, *options, **defaults):
        """Runs a suite; returns its report."""
        done = self.run(entries, *options, **defaults)
        assert done.returncode == 0, f"it exited with {done.returncode}: {done.stderr.strip()}"
        return json.loads(done.stdout)


def at(*models):
    """The models of servers, for a suite."""
    return {side: {"kind": "api", "base": name, "endpoint": root} for side, (root, name) in zip(("base", "ft"), models)}


def by_name(report):
    return {probe["name"]: probe for probe in report["probes"]}


def compare(check, found, wanted, names):
    """Compares the values and the evidence of entries."""
    found = by_name(found)
    check.of = "numbers"
    for name in names:
        for key in ("verdict", "raw", "base_value", "ft_value", "ci_95", "evidence"):
            check.count += near(found[name].get(key), wanted[name].get(key), f"{name}.{key}")


def near(found, wanted, where, tolerance=TOLERANCE):
    """Compares nested values; returns the number of numbers."""
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


def no_failures(check, report):
    """Checks that the report lists the limitations of servers and has no errors."""
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
    with serve(ours, files["base"], "--served-name", "base", WEIGHTLOOM_API_KEY=KEY) as base, \
            serve(ours, files["base"], *adapter, WEIGHTLOOM_API_KEY=KEY) as tuned:
        judge = Judge(place, ours, at((base.url, "base"), (tuned.url, "tuned")), "cache-ours")
        with report.check("sway: weightloom serve → local backend") as check:
            compare(check, judge.judged(PLAIN + SCORED + WHOLE), wanted, wanted.keys())
        paired(report, judge, "weightloom serve")
        secrets(report, judge, "weightloom serve")


def paired(report, judge, what):
    with report.check(f"sway: {what}, paired: supported probes are judged, the others skipped") as check:
        found = judge.judged(PLAIN + SCORED + WHOLE + UNSUPPORTED, statistics="paired")
        no_failures(check, found)
        skipped = {probe["name"] for probe in found["probes"] if probe["verdict"] == "skip"}
        assert skipped == {entry["name"] for entry in UNSUPPORTED}, skipped
        raws = [probe["raw"] for probe in found["probes"] if probe["name"] not in skipped]
        assert all(isinstance(raw, float) for raw in raws), raws


def secrets(report, judge, what):
    with report.check(f"sway: {what}: the API key does not leak") as check:
        kept = [path for path in judge.cache.rglob("*") if path.is_file()]
        assert kept, "no answers are cached"
        for text in (judge.seen.encode(), *(path.read_bytes() for path in kept)):
            assert KEY.encode() not in text
        check.of, check.count = "texts", 1 + len(kept)


def served_by_llama_cpp_python(place, ours, report, files, wanted):
    served = {name: files[name] for name in ("base", "tuned", "unmarked")}
    with llama_cpp_python(place / "llama.json", served, KEY) as root:
        judge = Judge(place, ours, at((root, "base"), (root, "tuned")), "cache-llama")
        with report.check("sway: llama-cpp-python → local backend") as check:
            found = judge.judged(PLAIN + SCORED + WHOLE)
            compare(check, found, wanted, [entry["name"] for entry in PLAIN + SCORED])
        with report.check("sway: llama-cpp-python, whole texts → score") as check:
            whole_texts(check, ours, files, by_name(found))
        paired(report, judge, "llama-cpp-python")
        secrets(report, judge, "llama-cpp-python")
        with report.check("sway: llama-cpp-python without a BOS token returns wrong rows, which is detected") as check:
            wrong = Judge(place, ours, at((root, "base"), (root, "unmarked")), "cache-unmarked")
            only_echo_probes_fail(check, wrong.judged(PLAIN + SCORED + WHOLE), "its `echo` is wrong")


def whole_texts(check, ours, files, found):
    """The server returns nothing for the first token after BOS, so that token is excluded."""

    def surprise(text, *options):
        tokens = ours.call("score", files["base"], text, *options)["tokens"]
        return -sum(token["log_probability"] for token in tokens[2:]) / (len(tokens) - 2)

    def both(text):
        return surprise(text), surprise(text, "--adapter", files["adapter"])

    lines = "\n\n".join(line.strip() for line in CORPUS.splitlines() if line.strip())
    chunks = [both(lines[start:start + 200]) for start in range(0, len(lines), 200)][:2]
    changes = [base - tuned for base, tuned in chunks]
    check.of = "numbers"
    check.count += near(found["neutral"]["evidence"]["per_chunk_delta"], changes, "neutral")
    sections = [section.split("\n", 1)[1].strip() for section in DOCUMENT.split("# ")[1:]]
    records = found["sections"]["evidence"]["per_section"]
    for section, record in zip(sections, records, strict=True):
        base, tuned = both(section)
        check.count += near([record["base_nll"], record["ft_nll"]], [base, tuned], "sections")


def only_echo_probes_fail(check, report, why):
    """Probes that need no echo are judged; the others fail with the reason."""
    notes = [note for note in report["backend"]["notes"] if "cannot score given texts" in note]
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
        with report.check("sway: llama.cpp's server → local backend") as check:
            found = judge.judged(PLAIN + SCORED + WHOLE)
            compare(check, found, wanted, [entry["name"] for entry in PLAIN])
        with report.check("sway: llama.cpp's server has no echo, which is reported") as check:
            only_echo_probes_fail(check, found, "echo")


def killed(place, ours, report, files):
    """The server of the tuned model is killed during a run and restarts at another address."""
    entries = PLAIN + SCORED + WHOLE
    options = ("--served-name", "tuned", "--adapter", files["adapter"])
    with serve(ours, files["base"], "--served-name", "base") as base, \
            serve(ours, files["base"], *options) as first, proxied(first.url) as (proxy, root):
        judge = Judge(place, ours, at((base.url, "base"), (root, "tuned")), "cache-killed")
        undisturbed = judge.judged(entries, "--no-cache")
        whole = proxy.asked
        with report.check("sway: a server killed during a run is reported") as check:
            proxy.when(whole + whole // 2, first.process.kill)
            done = judge.run(entries)
            assert done.returncode == 3, f"it exited with {done.returncode}: {done.stderr}"
            assert not done.stdout, done.stdout
            assert f"request to {root} failed after 5 attempts" in done.stderr, done.stderr
            assert "check that the server is running" in done.stderr and "run the suite again to resume" in done.stderr, done.stderr
            cached = int(done.stderr.split(" new answers are cached")[0].split()[-1])
            assert cached >= whole // 2, f"{cached} answers are cached"
            check.of, check.count = "cached answers", cached
            assert first.process.wait(SECONDS) == -signal.SIGKILL
        answered = proxy.answered - whole
        with report.check("sway: the next run requests only missing answers, and gives the same report") as check:
            with serve(ours, files["base"], *options) as second:
                proxy.target, proxy.asked = second.url, 0
                again = judge.judged(entries)
            assert proxy.asked == whole - answered + PREFLIGHT_REQUESTS, f"{proxy.asked} requests, {answered} of {whole} answered"
            check.of, check.count = "requests", proxy.asked
            near(stable(again), stable(undisturbed), "report", 0.0)
        with report.check("sway: a third run requests nothing, without a server") as check:
            proxy.asked = 0
            third = judge.judged(entries)
            assert proxy.asked == 0
            near(stable(third), stable(undisturbed), "report", 0.0)
            check.of, check.count = "entries", len(third["probes"])


def stable(report):
    """The report without times."""
    report = {key: value for key, value in report.items()
              if key not in ("started_at", "finished_at", "wall_seconds", "backend_stats")}
    report["probes"] = [{key: value for key, value in probe.items() if key != "duration_s"} for probe in report["probes"]]
    return report
