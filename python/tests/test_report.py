"""`wl.Report` and `wl.compare`: properties, files in all formats, tables and plots."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import weightloom as wl
from weightloom._call import call

HOSTILE = "$\\frac{a}$ \x1b[2J<b>&\u202e\n$"
"""A name that others could choose: a formula, a control sequence, a tag, another direction, a line end."""


@pytest.fixture(scope="module")
def file(quickstart: Path) -> Path:
    return quickstart / "report.json"


@pytest.fixture(scope="module")
def report(file: Path) -> wl.Report:
    return wl.Report.open(file)


@pytest.fixture(autouse=True)
def closed_figures() -> Any:
    from matplotlib import pyplot

    yield
    pyplot.close("all")


def changed(report: wl.Report, probe: int = 0, **values: Any) -> wl.Report:
    """A report with other values of a probe."""
    data = json.loads(report.to_json())
    data["probes"][probe] |= values
    return wl.Report(json.dumps(data))


def command(*arguments: str | Path) -> str:
    """What the command prints for people."""
    done = subprocess.run([sys.executable, "-m", "weightloom", *arguments], check=True, capture_output=True, text=True)
    return done.stdout


def test_properties_are_those_of_the_file(report: wl.Report, file: Path) -> None:
    data = json.loads(file.read_text())
    assert report.data == data
    assert [probe.name for probe in report] == [record["name"] for record in data["probes"]]
    assert [probe.verdict for probe in report.probes] == [record["verdict"] for record in data["probes"]]
    assert len(report) == len(data["probes"]) == 6
    assert (report.base, report.tuned) == (data["base_model_id"], data["adapter_id"])
    assert report.score == data["score"]["overall"]
    assert set(data["notes"]) <= set(report.notes) and list(report.warnings) == data["warnings"]
    change, record = report["change"], data["probes"][1]
    assert (change.name, change.kind, change.message) == ("change", "delta_kl", record["message"])
    assert (change.value, change.score, change.p_value, change.seconds) == (
        record["raw"], record["score"], record["p_value"], record["duration_s"],
    )  # fmt: skip
    assert change.interval == tuple(record["ci_95"]) and change.evidence == record["evidence"]
    assert list(change.noise) == record["evidence"]["null_samples"] and len(change.noise) == 24
    assert change.category == "adherence" and "nats" in change.axis and change.title
    # A limit with the side that passes.
    text = report["old_text"]
    assert text.passes == "above" and text.limit is not None and not text.noise


def test_the_verdict_is_that_of_the_command(report: wl.Report, file: Path) -> None:
    assert report.headline in command("sway", "report", file)
    assert [question.question for question in report.questions] == [
        "Did the model change more than noise?", "Did it learn what it was trained on?", "Did it lose what it knew?",
    ]  # fmt: skip
    assert [question.hoped for question in report.questions] == ["yes", "yes", "no"]
    assert {question.decision for question in report.questions} <= {"yes", "no", "undecided", "not_tested"}
    assert all(question.evidence for question in report.questions if question.decision != "not_tested")
    assert report.grade in ("healthy", "unclear", "ineffective", "memorized", "damaged")


def test_refusals_are_those_of_the_gate(report: wl.Report, quickstart: Path) -> None:
    for threshold in (0.0, 1.0):
        gate = call("sway gate", [quickstart / "sway.yaml"], [f"--threshold={threshold}"])
        assert (gate.code == 0) == (report.refusals(threshold) == ())
    with pytest.raises(wl.UserError, match="threshold 2 is outside the range of scores\nhint: "):
        report.refusals(2.0)


def test_a_report_is_read_again_as_it_was_saved(report: wl.Report, tmp_path: Path) -> None:
    assert report.save(tmp_path / "again.json") == tmp_path / "again.json"
    again = wl.Report.open(tmp_path / "again.json")
    assert again == report and again.to_json() == report.to_json()
    assert again != changed(report, message="other") and again != report.to_json()


@pytest.mark.parametrize(
    ("name", "format_", "method"),
    [("r.json", "json", "to_json"), ("r.md", "markdown", "to_markdown"), ("r.HTML", "html", "to_html"),
     ("r.htm", "html", "to_html"), ("r.xml", "junit", "to_junit")],
)  # fmt: skip
def test_files_are_those_of_the_command(
    report: wl.Report, file: Path, tmp_path: Path, name: str, format_: str, method: str
) -> None:
    saved = report.save(tmp_path / name).read_text()
    assert saved.rstrip("\n") == command("sway", "report", file, f"--format={format_}").rstrip("\n")
    assert getattr(report, method)() == saved
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_html_and_junit_are_whole_documents(report: wl.Report) -> None:
    page = report.to_html()
    assert page.startswith("<!") and page.rstrip().endswith("</html>") and "change" in page
    # It needs nothing else: no address is loaded.
    assert not re.search(r"(src|href)=[\"']https?:", page)
    suites = ElementTree.fromstring(report.to_junit())
    cases = [case.get("name", "") for case in suites.iter("testcase")]
    assert all(any(probe.name in case for case in cases) for probe in report)


def test_a_report_that_cannot_be_saved_leaves_nothing(report: wl.Report, tmp_path: Path) -> None:
    with pytest.raises(wl.UserError, match=r"no format of reports ends in `\.txt`\nhint: use \.json"):
        report.save(tmp_path / "report.txt")
    with pytest.raises(wl.UserError, match="no format of reports"):
        report.save(tmp_path / "report")
    with pytest.raises(OSError, match="none"):
        report.save(tmp_path / "none/report.md")
    (tmp_path / "folder.md").mkdir()
    with pytest.raises(OSError, match=re.escape("folder.md")):
        report.save(tmp_path / "folder.md")
    assert [path.name for path in tmp_path.iterdir()] == ["folder.md"]


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"probes": 3}', "\ud800"])
def test_what_is_no_report_is_an_error(tmp_path: Path, text: str) -> None:
    file = tmp_path / "wrong.json"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(wl.UserError, match=re.escape(str(file))):
        wl.Report.open(file)
    with pytest.raises(wl.UserError, match="cannot read") as raised:
        wl.Report.open(tmp_path / "none.json")
    assert raised.value.hint


def test_an_unknown_probe_is_an_error_that_names_the_others(report: wl.Report) -> None:
    with pytest.raises(wl.UserError, match="the report has no probe `chance`\nhint: it has noise, change, choices, words"):
        report["chance"]


def test_a_report_prints_its_verdict_and_its_probes(report: wl.Report) -> None:
    lines = str(report).splitlines()
    assert lines[0] == report.headline and len(lines) == 1 + len(report)
    assert repr(report) == f"<Report: {report.headline}>"
    hostile = changed(report, 1, name=HOSTILE, message=HOSTILE)
    assert "\x1b" not in str(hostile) and len(str(hostile).splitlines()) == len(lines)


class Tags(HTMLParser):
    """Opens and closes tags, as browsers would not complain about."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.cells: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)
        self.seen.append(tag)
        if tag == "td":
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "td":
            self.cells[-1] += data


def test_a_notebook_shows_tables_of_answers_and_probes(report: wl.Report) -> None:
    tags = Tags(report._repr_html_())
    assert tags.open == [] and tags.seen.count("table") == 2
    assert len(tags.cells) == 3 * 3 + 5 * len(report)
    assert any(cell.endswith("change") for cell in tags.cells) and report["change"].message in tags.cells
    hostile = Tags(changed(report, 1, name=HOSTILE, message=HOSTILE)._repr_html_())
    assert hostile.seen == tags.seen
    assert not any(sign in cell for cell in hostile.cells for sign in "\x1b\u202e")


def texts(ax: Any) -> list[str]:
    """All texts beside the rows."""
    axes = [ax, *ax.child_axes]
    return [label.get_text() for one in axes for label in one.get_yticklabels()]


def test_a_plot_has_a_row_for_each_number(report: wl.Report, tmp_path: Path) -> None:
    ax = report.plot()
    assert ax.figure.get_suptitle().replace("\n", " ") == report.headline
    rows = [probe.name for probe in report if probe.value is not None]
    assert [label.get_text() for label in ax.get_yticklabels()] == rows
    change = report["change"]
    beside = texts(ax)[len(rows) + rows.index("change")]
    assert beside.startswith(f"{change.value:.3g}  (") and beside.endswith(f")\n{change.axis}")
    # What passes is right of the middle, and all else left of it.
    for place, name in enumerate(rows):
        [x] = [float(line.get_xdata()[0]) for line in ax.lines if line.get_marker() == "o" and line.get_ydata()[0] == place]
        assert -1 < x < 1
        if report[name].verdict == "fail":
            assert x < 0
    ax.figure.savefig(tmp_path / "report.png")


def test_a_plot_goes_onto_given_axes(report: wl.Report) -> None:
    from matplotlib import pyplot

    figure, (first, second) = pyplot.subplots(2)
    assert report.plot(first) is first and report.plot(ax=second) is second
    # The figure is the caller's.
    assert figure.get_suptitle() == "" and pyplot.get_fignums() == [figure.number]


@pytest.mark.parametrize(
    ("verdict", "values", "side"),
    [
        ("pass", {"raw": 0.9, "ci_95": [0.8, 1.0], "null_samples": [0.1, 0.2]}, 1),
        ("fail", {"raw": 0.15, "ci_95": [0.1, 0.2], "null_samples": [0.1, 0.2]}, -1),
        # Less than any noise is a change too.
        ("pass", {"raw": 0.01, "ci_95": None, "null_samples": [0.1, 0.2]}, 1),
        ("pass", {"raw": -0.1, "ci_95": [-0.2, 0.0], "raw_limit": -0.5, "raw_passes": "above"}, 1),
        ("fail", {"raw": -0.9, "ci_95": None, "raw_limit": -0.5, "raw_passes": "above"}, -1),
        ("pass", {"raw": 0.1, "ci_95": None, "raw_limit": 0.5, "raw_passes": "below"}, 1),
        # Further from nothing than noise, and yet too small to matter.
        ("fail", {"raw": 0.01, "null_samples": [0.001, 0.002], "raw_limit": 0.02, "raw_passes": "above"}, -1),
        ("inconclusive", {"raw": 3.0, "ci_95": None}, 0),
    ],
)
def test_what_passes_is_right_of_the_middle(report: wl.Report, verdict: str, values: dict[str, Any], side: int) -> None:
    evidence = {name: value for name, value in values.items() if name not in ("raw", "ci_95")}
    shown = {"verdict": verdict, "raw": values["raw"], "ci_95": values.get("ci_95"), "evidence": evidence}
    ax = changed(report, 0, **shown).plot()
    [x] = [float(line.get_xdata()[0]) for line in ax.lines if line.get_marker() == "o" and line.get_ydata()[0] == 0]
    assert (x > 0) - (x < 0) == side and abs(x) < 1


def test_names_of_others_are_drawn_as_they_are(report: wl.Report, tmp_path: Path) -> None:
    ax = changed(report, 1, name=HOSTILE).plot()
    ax.figure.savefig(tmp_path / "hostile.svg")
    svg = (tmp_path / "hostile.svg").read_text()
    drawn = texts(ax)
    assert not any(sign in text.replace("\n", "", 1) for text in drawn for sign in "\x1b\u202e\n")
    # Matplotlib writes each text as a comment beside its shape.
    assert r"$\frac{a}$" in svg.replace("&#", "#")


def test_a_report_without_numbers_has_no_plot(report: wl.Report) -> None:
    data = json.loads(report.to_json())
    data["probes"] = []
    empty = wl.Report(json.dumps(data))
    with pytest.raises(wl.UserError, match="cannot plot the report: no probe has a number\nhint: "):
        empty.plot()
    with pytest.raises(wl.UserError, match="hint: no probe ran"):
        empty["change"]
    assert empty.score is None and len(str(empty).splitlines()) == 1
    assert Tags(empty._repr_html_()).open == []


def test_a_plot_without_matplotlib_is_an_error(report: wl.Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(wl.UserError, match="cannot plot the report: matplotlib is not installed\nhint: run `pip install"):
        report.plot()


def worse(report: wl.Report) -> wl.Report:
    """The report of a model that predicts ordinary text worse."""
    data = json.loads(report.to_json())
    record = next(record for record in data["probes"] if record["name"] == "old_text")
    lost = json.loads(json.dumps(record["evidence"]), parse_float=lambda text: float(text) - 3.0)
    record["evidence"] = record["evidence"] | {key: lost[key] for key in lost if isinstance(lost[key], list)}
    record["raw"] -= 3.0
    return wl.Report(json.dumps(data))


def test_reports_are_compared_as_by_the_command(report: wl.Report, tmp_path: Path) -> None:
    before, after = report.save(tmp_path / "before.json"), worse(report).save(tmp_path / "after.json")
    compared = wl.compare(before, after)
    shown = call("sway compare", [before, after], ["--format=json"])
    assert compared.data == (shown.results[0] if len(shown.results) == 1 else shown.results)
    assert compared.labels == ("before", "after")
    assert compared.is_worse and call("sway compare", [before, after], ["--fail-on-regression"]).code == 1
    [effects] = compared.steps
    outcomes = {effect.name: effect.outcome for effect in effects}
    assert outcomes["old_text"] == "regression" and outcomes["choices"] == "unchanged"
    loss = next(effect for effect in effects if effect.name == "old_text")
    assert loss.change == pytest.approx(-3.0) and loss.unit and loss.margin > 0
    assert loss.before is not None and loss.after == pytest.approx(loss.before - 3.0)
    assert any("old_text" in sentence for sentence in compared.sentences)
    assert "old_text" in compared.to_markdown() and json.loads(compared.to_json()) == compared.data
    assert repr(compared) == "<ReportComparison before, after: worse>" and "old_text" in str(compared)
    # The other way round, it is better.
    better = wl.compare(worse(report), report)
    assert better.labels == ("1", "2") and not better.is_worse
    assert {effect.name: effect.outcome for effect in better.steps[0]}["old_text"] == "better"
    # A margin that is large enough forgives it.
    assert not wl.compare(before, after, margin=5.0).is_worse


def test_several_reports_are_compared_in_their_order(report: wl.Report) -> None:
    compared = wl.compare(report, worse(report), report, labels=["a", "b", "c"])
    assert len(compared.steps) == 2 and compared.labels == ("a", "b", "c") and not compared.is_worse
    tags = Tags(compared._repr_html_())
    assert tags.open == [] and "old_text" in tags.cells


def test_files_of_one_name_are_told_apart(report: wl.Report, tmp_path: Path) -> None:
    paths = [tmp_path / "one/report.json", tmp_path / "two/report.json"]
    for path in paths:
        path.parent.mkdir()
        report.save(path)
    assert wl.compare(*paths).labels == tuple(map(str, paths))
    # A report has the name of its place, which a file may have too.
    report.save(tmp_path / "1.json")
    assert len(set(wl.compare(report, tmp_path / "1.json").labels)) == 2


def test_what_cannot_be_compared_is_an_error(report: wl.Report, tmp_path: Path) -> None:
    with pytest.raises(wl.UserError, match="cannot compare 1 report\nhint: pass at least two"):
        wl.compare(report)
    with pytest.raises(wl.UserError, match="2 reports: labels are given for 1\nhint: "):
        wl.compare(report, report, labels=["one"])
    with pytest.raises(wl.UserError, match="hint: use a number of at least 0"):
        wl.compare(report, report, margin=-1.0)
    with pytest.raises(wl.UserError, match="cannot read"):
        wl.compare(report, tmp_path / "none.json")


def test_a_comparison_is_plotted(report: wl.Report, tmp_path: Path) -> None:
    compared = wl.compare(report, changed(worse(report), 2, name=HOSTILE), labels=["$before$", "\x1bafter"])
    ax = compared.plot()
    assert ax.figure.get_suptitle() == r"\$before\$ → \x1bafter: worse"
    rows = [label.get_text() for label in ax.get_yticklabels()]
    place = rows.index("old_text")
    [x] = [float(line.get_xdata()[0]) for line in ax.lines if line.get_marker() == "o" and line.get_ydata()[0] == place]
    assert -1 < x < 0
    ax.figure.savefig(tmp_path / "changes.png")


def test_a_comparison_of_other_suites_has_no_plot(report: wl.Report) -> None:
    data = json.loads(report.to_json())
    for record in data["probes"]:
        record["name"] += "_again"
    other = wl.compare(report, wl.Report(json.dumps(data)))
    with pytest.raises(wl.UserError, match="cannot plot the comparison: the reports have no probe in common\nhint: "):
        other.plot()
