"""The HTML report of `weightloom sway run --html`, in headless Chromium."""

import json

import sample_pages
from chromium import browser
from weightloom_cli import output
from page_checks import CHECKS, opened
from page_mutations import FAULTS, broken
from page_values import differences, visible

# Problems shown per check; the others are counted.
SHOWN = 6
PARTS = [
    "Effects and limits", "What failed", "Persistence in long contexts", "Sections of the document",
    "Strength of the adapter", "Layers of the change", "Comparison with noise", "Generated texts", "Item by item",
    "Probes", "Score", "Run",
]
QUESTIONS = [
    "Did the model change more than noise?", "Did it learn what it was trained on?",
    "Does it recite what it was trained on?", "Did it lose what it knew?",
]


def run(place, ours, report):
    made = {
        "of all probes": sample_pages.full(place, ours),
        "in reference mode": sample_pages.full(place, ours, "reference"),
        "of hostile texts": sample_pages.hostile(place, ours),
        "of failures": sample_pages.failed(place, ours),
        "of nothing": sample_pages.empty(place, ours),
        "of 200 probes": sample_pages.many(place, ours),
        "of damage": sample_pages.damaged(place, ours),
    }
    with browser() as chromium:
        page = chromium.page()
        for name, (source, file) in made.items():
            looked_at(page, name, file, report)
            with report.check(f"page {name}: numbers → JSON") as check:
                check.of = "numbers"
                faults, check.count = numbers(page, source, file)
                none(faults)
        contents(page, made, report)
        compared(place, ours, page, made, report)
        refused(place, page, *made["of all probes"], report)
    again(place, ours, report, *made["of all probes"])


def looked_at(page, name, file, report):
    for one in CHECKS:
        with report.check(f"page {name}: {one.__name__}") as check:
            check.of, check.count = "bytes", file.stat().st_size
            none(one(page, file))


def none(faults):
    more = f"; and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
    assert not faults, "; ".join(faults[:SHOWN]) + more


def numbers(page, source, file):
    opened(page, file)
    return differences(page.evaluate("audit.contents()"), json.loads(source.read_text()))


def contents(page, made, report):
    with report.check("page of all probes: sections") as check:
        opened(page, made["of all probes"][1])
        found = page.evaluate("audit.contents()")
        check.of, check.count = "parts", len(PARTS)
        assert found["headings"] == PARTS, found["headings"]
        assert len(found["generations"]) > 3, "few texts are compared"
        assert found["questions"] == QUESTIONS, found["questions"]
    with report.check("page of damage: says so in words and in colour") as check:
        opened(page, made["of damage"][1])
        found = page.evaluate("audit.contents()")
        check.of, check.count = "answers", len(found["answers"])
        assert found["grade"] == "damaged", found["grade"]
        assert found["answers"] == ["✓ Yes", "✓ Yes", "✗ Yes"], found["answers"]
        assert "healthy" not in found["text"].lower(), "damage reads healthy"
        lost = [drawing["lost"] for drawing in found["drawings"] if drawing["place"] == "failing"]
        assert 120 in lost, lost
    with report.check("page of hostile texts: every text is present") as check:
        opened(page, made["of hostile texts"][1])
        found = page.evaluate("document.body.textContent")
        check.of = "texts"
        for name, text in sample_pages.HOSTILE.items():
            check.count += 1
            assert visible(text) in found, f"{name} is missing"
        assert page.evaluate("document.title") != "taken", "a script in a report ran"
    for name, words in (("of failures", "No probe could run"), ("of nothing", "No probe ran")):
        with report.check(f"page {name}: says so") as check:
            opened(page, made[name][1])
            check.of, check.count = "verdicts", 1
            verdict = page.evaluate("audit.contents().verdict")
            assert verdict == f"{words}, so nothing was judged.", verdict


def compared(place, ours, page, made, report):
    """The page of several runs has the same qualities."""
    target = place / "compared.html"
    reports = [made[name][0] for name in ("of all probes", "of damage")]
    output([ours.weightloom, "sway", "compare", *reports, reports[1], "--plot", target])
    looked_at(page, "of a comparison", target, report)
    with report.check("page of a comparison: a point for each run") as check:
        opened(page, target)
        check.of, check.count = "points", 3
        dots = page.evaluate("audit.all('circle.dot').length")
        assert dots == 3, dots


def refused(place, page, source, file, report):
    """Every check detects the mutations meant for it."""
    known = {one.__name__: lambda file, one=one: one(page, file) for one in CHECKS}
    known["numbers"] = lambda file: numbers(page, source, file)[0]
    with report.check("mutated pages: every mutation is detected") as check:
        check.of = "faults"
        text, missed = file.read_text(), []
        target = place / "broken.html"
        for name, what, pattern, replacement in FAULTS:
            check.count += 1
            target.write_text(broken(text, what, pattern, replacement))
            if not known[name](target):
                missed.append(f"{name} does not see {what}")
        none(missed)
        assert set(known) == {name for name, *_ in FAULTS}, "a check is never put to the test"


def again(place, ours, report, source, file):
    with report.check("the page of a saved report equals that of the run") as check:
        check.of, check.count = "bytes", file.stat().st_size
        target = place / "again.html"
        output([ours.weightloom, "sway", "report", source, "--format", "html", "--out", target])
        assert target.read_bytes() == file.read_bytes(), "the pages differ"
