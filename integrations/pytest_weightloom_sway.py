"""A pytest plugin: each probe of a suite is a test.

Copy this file beside your tests and load it in `conftest.py`:

    pytest_plugins = ["pytest_weightloom_sway"]

Then mark an empty function:

    @pytest.mark.sway("sway.yaml", threshold=0.6)
    def test_adapter(): ...

It becomes one test for each entry of the suite, `test_adapter::NAME`, and
`test_adapter::__gate__` for the score if a threshold above 0 is given. The
suite is run once, when the first of them is. A path is told from pytest's root.

It needs the command `weightloom` (or what the ini option `sway_command` names)
and PyYAML, by which the entries are known before anything is run.
"""

from __future__ import annotations

import json
import math
import subprocess
import tempfile
import types
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest

GATE = "__gate__"


class SwayWarning(pytest.PytestWarning):
    """A probe that is worth a look, or whose data do not decide."""


class SwayFailure(Exception):
    """A probe that failed; its text says all."""


class BadSuite(Exception):
    """A mark or a suite file that cannot be used; its text says why."""


@dataclass(frozen=True)
class Suite:
    """What a mark asks for."""

    spec: Path
    threshold: float
    weights: tuple[tuple[str, float], ...]

    @property
    def key(self):
        return self.spec, self.weights


def pytest_addoption(parser):
    parser.addini("sway_command", "the command that runs suites", type="args", default=["weightloom"])


def pytest_configure(config):
    config.addinivalue_line(
        "markers",
        "sway(spec, threshold=0.0, weights=None): run a suite of `weightloom sway`, one test for each probe",
    )


def pytest_pycollect_makeitem(collector, name, obj):
    if not isinstance(obj, types.FunctionType) or not collector.funcnamefilter(name):
        return None
    own = getattr(obj, "pytestmark", [])
    marks = [mark for mark in own if mark.name == "sway"]
    if not marks:
        return None
    line = obj.__code__.co_firstlineno - 1

    def item(kind, ending, **more):
        made = kind.from_parent(collector, name=name + ending, line=line, **more)
        made.own_markers.extend(own)
        made.keywords.update({mark.name: mark for mark in own})
        return made

    try:
        suite = read_marks(marks, collector.config.rootpath)
        names = entry_names(suite.spec)
    except BadSuite as error:
        return [item(BadSuiteItem, "", problem=str(error))]
    items = [
        item(ProbeItem, f"::{probe}", suite=suite, probe=probe, turn=names[:place].count(probe))
        for place, probe in enumerate(names)
    ]
    if suite.threshold > 0:
        items.append(item(GateItem, f"::{GATE}", suite=suite))
    return items


def read_marks(marks, root):
    """What a function's marks ask for, checked."""
    if len(marks) > 1:
        raise BadSuite("the mark `sway` stands there more than once: write a function for each suite")
    try:
        return read_mark(root, *marks[0].args, **marks[0].kwargs)
    except TypeError as error:
        problem = str(error).replace("read_mark()", "sway()")
        raise BadSuite(f"{problem}\nhint: write sway(spec, threshold=0.0, weights=None)") from None


def read_mark(root, spec, threshold=0.0, weights=None):
    if not isinstance(spec, (str, Path)) or not str(spec):
        raise BadSuite(f"the mark's spec is {spec!r}, not the path of a suite")
    if not is_number(threshold) or not 0 <= threshold <= 1:
        raise BadSuite(f"the mark's threshold is {threshold!r}, not a number from 0 to 1")
    if weights is None:
        weights = {}
    if not isinstance(weights, dict) or not all(
        isinstance(category, str) and is_number(weight) and weight >= 0 for category, weight in weights.items()
    ):
        raise BadSuite(f"the mark's weights are {weights!r}, not categories with numbers of 0 or more")
    named = tuple(sorted((category, float(weight)) for category, weight in weights.items()))
    return Suite(spec=(root / spec).resolve(), threshold=float(threshold), weights=named)


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def entry_names(spec):
    """The names of a suite's entries, in order. The rest is checked when it is run."""
    try:
        import yaml
    except ImportError:
        raise BadSuite("PyYAML is not installed\nhint: pip install pyyaml") from None
    try:
        document = yaml.safe_load(spec.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadSuite(f"{spec} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise BadSuite(f"{spec} is not YAML: {error}") from None
    if not isinstance(document, dict):
        raise BadSuite(f"{spec} is not a suite: its top level is not a map")
    entries = document.get("suite") or []
    if not isinstance(entries, list):
        raise BadSuite(f"{spec}: `suite` is not a list")
    names = [entry.get("name") if isinstance(entry, dict) else None for entry in entries]
    for place, name in enumerate(names):
        if not isinstance(name, str) or not name:
            raise BadSuite(f"{spec}: entry {place + 1} has no name")
    if not names:
        raise BadSuite(f"{spec} has no probes")
    return names


REPORTS = pytest.StashKey[dict]()


def report_of(suite, config):
    """The report of a suite, which is run the first time it is asked for."""
    reports = config.stash.setdefault(REPORTS, {})
    if suite.key not in reports:
        reports[suite.key] = run(suite, config.getini("sway_command"))
    report = reports[suite.key]
    if isinstance(report, str):
        raise SwayFailure(report)
    return report


def run(suite, command):
    """The report of a suite, or a text that says why there is none."""
    with tempfile.TemporaryDirectory(prefix="sway-") as folder:
        file = Path(folder) / "report.json"
        arguments = [*command, "sway", "run", str(suite.spec), "--json", str(file)]
        if suite.weights:
            arguments += ["--weights", ",".join(f"{category}={weight:.12g}" for category, weight in suite.weights)]
        try:
            done = subprocess.run(
                arguments, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
            )
        except OSError as error:
            return f"{command[0]} cannot be started: {error}\nhint: install it, or set `sway_command`"
        if done.returncode != 0:
            said = done.stderr.strip() or done.stdout.strip() or "it said nothing"
            return f"{' '.join(arguments[:3])} ended with {done.returncode}: {said}"
        try:
            report = json.loads(file.read_text(encoding="utf-8"))
            report["probes"], report["score"]["overall"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            return f"{suite.spec} was run, but left no report: {error!r}"
        return report


class SwayItem(pytest.Item):
    """One test that a mark became."""

    def __init__(self, *, line, **more):
        super().__init__(**more)
        self.line = line

    def repr_failure(self, excinfo):
        if isinstance(excinfo.value, (SwayFailure, BadSuite)):
            return str(excinfo.value)
        return super().repr_failure(excinfo)

    def reportinfo(self):
        return self.path, self.line, self.name


class ProbeItem(SwayItem):
    """One entry of a suite."""

    def __init__(self, *, suite, probe, turn, **more):
        super().__init__(**more)
        self.suite = suite
        self.probe = probe
        # Which of several entries of one name, which reference mode allows.
        self.turn = turn

    def runtest(self):
        report = report_of(self.suite, self.config)
        records = [record for record in report["probes"] if record["name"] == self.probe]
        if self.turn >= len(records):
            # The backend did not work at all: one record says so.
            said = [described(record) for record in report["probes"] if record["verdict"] == "error"]
            raise SwayFailure("\n".join(said) or f"the report says nothing about {self.probe}")
        judge(records[self.turn])


class GateItem(SwayItem):
    """The score of a suite."""

    def __init__(self, *, suite, **more):
        super().__init__(**more)
        self.suite = suite

    def runtest(self):
        score = report_of(self.suite, self.config)["score"]
        overall = score["overall"]
        if not is_number(overall) or overall < self.suite.threshold:
            findings = "".join(f"\n- {finding}" for finding in score.get("findings") or [])
            shown = f"{overall:.3f}" if is_number(overall) else overall
            raise SwayFailure(f"the score is {shown}, below {self.suite.threshold:g}{findings}")


class BadSuiteItem(SwayItem):
    """What a bad mark, or a suite that cannot be read, became."""

    def __init__(self, *, problem, **more):
        super().__init__(**more)
        self.problem = problem

    def runtest(self):
        raise BadSuite(self.problem)


def judge(record):
    verdict, said = record["verdict"], described(record)
    if verdict == "skip":
        pytest.skip(said)
    elif verdict in ("warn", "inconclusive"):
        warnings.warn(SwayWarning(said), stacklevel=1)
    elif verdict != "pass":
        raise SwayFailure(said)


def described(record):
    said = f"{record['name']} ({record.get('kind', '?')}) {record['verdict']}: {record.get('message') or 'no message'}"
    numbers = []
    for key, name in [("raw", "raw"), ("z_score", "z"), ("p_adjusted", "p"), ("score", "score")]:
        if is_number(record.get(key)):
            numbers.append(f"{name} {record[key]:.4g}")
    return f"{said} [{', '.join(numbers)}]" if numbers else said
