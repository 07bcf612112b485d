"""Pytest plugin that turns each probe of a suite into a test.

Copy this file beside your tests and load it in `conftest.py`:

    pytest_plugins = ["pytest_weightloom_sway"]

Then mark an empty function:

    @pytest.mark.sway("sway.yaml", threshold=0.6)
    def test_adapter(): ...

It becomes one test per entry of the suite, `test_adapter::NAME`, and
`test_adapter::__gate__` for the score if the threshold is above 0. The suite
runs once, with the first of these tests. Paths are relative to pytest's root.

Requires the command `weightloom` (or the ini option `sway_command`), and PyYAML
to collect the entries before anything runs.
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
    """A probe with the verdict `warn` or `inconclusive`."""


class SwayFailure(Exception):
    """A failed probe, with the message to show."""


class BadSuite(Exception):
    """An invalid mark or suite file, with the message to show."""


@dataclass(frozen=True)
class Suite:
    """The arguments of a mark."""

    spec: Path
    threshold: float
    weights: tuple[tuple[str, float], ...]

    @property
    def key(self):
        return self.spec, self.weights


def pytest_addoption(parser):
    parser.addini("sway_command", "command that runs suites", type="args", default=["weightloom"])
    parser.addini("sway_allow_programs", "start the programs of suites (`kind: custom`)", type="bool", default=False)


def pytest_configure(config):
    config.addinivalue_line(
        "markers",
        "sway(spec, threshold=0.0, weights=None): run a suite of `weightloom sway`, one test per probe",
    )


def pytest_pycollect_makeitem(collector, name, obj):
    if not isinstance(obj, types.FunctionType) or not collector.funcnamefilter(name):
        return None
    own = getattr(obj, "pytestmark", [])
    marks = [mark for mark in own if mark.name == "sway"]
    if not marks:
        return None
    line = obj.__code__.co_firstlineno - 1

    def item(kind, suffix, **more):
        created = kind.from_parent(collector, name=name + suffix, line=line, **more)
        created.own_markers.extend(own)
        created.keywords.update({mark.name: mark for mark in own})
        return created

    try:
        suite = read_marks(marks, collector.config.rootpath)
        names = entry_names(suite.spec)
    except BadSuite as error:
        return [item(BadSuiteItem, "", problem=str(error))]
    items = [
        item(ProbeItem, f"::{probe}", suite=suite, probe=probe, occurrence=names[:index].count(probe))
        for index, probe in enumerate(names)
    ]
    if suite.threshold > 0:
        items.append(item(GateItem, f"::{GATE}", suite=suite))
    return items


def read_marks(marks, root):
    """Validates the marks of a function."""
    if len(marks) > 1:
        raise BadSuite("more than one `sway` mark on a function\nhint: write one function per suite")
    try:
        return read_mark(root, *marks[0].args, **marks[0].kwargs)
    except TypeError as error:
        problem = str(error).replace("read_mark()", "sway()")
        raise BadSuite(f"{problem}\nhint: write sway(spec, threshold=0.0, weights=None)") from None


def read_mark(root, spec, threshold=0.0, weights=None):
    if not isinstance(spec, (str, Path)) or not str(spec):
        raise BadSuite(f"invalid spec {spec!r} of the mark: expected the path of a suite")
    if not is_number(threshold) or not 0 <= threshold <= 1:
        raise BadSuite(f"invalid threshold {threshold!r} of the mark: expected a number from 0 to 1")
    if weights is None:
        weights = {}
    if not isinstance(weights, dict) or not all(
        isinstance(category, str) and is_number(weight) and weight >= 0 for category, weight in weights.items()
    ):
        raise BadSuite(f"invalid weights {weights!r} of the mark: expected categories with non-negative numbers")
    named = tuple(sorted((category, float(weight)) for category, weight in weights.items()))
    return Suite(spec=(root / spec).resolve(), threshold=float(threshold), weights=named)


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def entry_names(spec):
    """The names of a suite's entries, in order. The command checks everything else."""
    try:
        import yaml
    except ImportError:
        raise BadSuite("PyYAML is not installed\nhint: pip install pyyaml") from None
    try:
        document = yaml.safe_load(spec.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadSuite(f"cannot read {spec}: {error}") from None
    except yaml.YAMLError as error:
        raise BadSuite(f"cannot parse {spec}: {error}") from None
    if not isinstance(document, dict):
        raise BadSuite(f"{spec}: the top level is not a map")
    entries = document.get("suite") or []
    if not isinstance(entries, list):
        raise BadSuite(f"{spec}: `suite` is not a list")
    names = [entry.get("name") if isinstance(entry, dict) else None for entry in entries]
    for index, name in enumerate(names):
        if not isinstance(name, str) or not name:
            raise BadSuite(f"{spec}: entry {index + 1} has no name")
    if not names:
        raise BadSuite(f"{spec} has no probes")
    return names


REPORTS = pytest.StashKey[dict]()


def report_of(suite, config):
    """The report of a suite, which runs on the first call."""
    reports = config.stash.setdefault(REPORTS, {})
    if suite.key not in reports:
        options = ["--allow-programs"] if config.getini("sway_allow_programs") else []
        reports[suite.key] = run(suite, config.getini("sway_command"), options)
    report = reports[suite.key]
    if isinstance(report, str):
        raise SwayFailure(report)
    return report


def run(suite, command, options):
    """Runs a suite; returns its report, or an error message."""
    with tempfile.TemporaryDirectory(prefix="sway-") as folder:
        file = Path(folder) / "report.json"
        arguments = [*command, "sway", "run", str(suite.spec), "--json", str(file), *options]
        if suite.weights:
            arguments += ["--weights", ",".join(f"{category}={weight:.12g}" for category, weight in suite.weights)]
        try:
            done = subprocess.run(
                arguments, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
            )
        except OSError as error:
            return f"cannot start {command[0]}: {error}\nhint: install it, or set `sway_command`"
        if done.returncode != 0:
            message = done.stderr.strip() or done.stdout.strip() or "no output"
            return f"{' '.join(arguments[:3])} exited with {done.returncode}: {message}"
        try:
            report = json.loads(file.read_text(encoding="utf-8"))
            report["probes"], report["score"]["overall"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            return f"{suite.spec} wrote no valid report: {error!r}"
        return report


class SwayItem(pytest.Item):
    """A test generated from a mark."""

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
    """Test of one entry of a suite."""

    def __init__(self, *, suite, probe, occurrence, **more):
        super().__init__(**more)
        self.suite = suite
        self.probe = probe
        # Index among entries of the same name, which reference mode allows.
        self.occurrence = occurrence

    def runtest(self):
        report = report_of(self.suite, self.config)
        records = [record for record in report["probes"] if record["name"] == self.probe]
        if self.occurrence >= len(records):
            # The backend failed its preflight check, which has a single record.
            errors = [describe(record) for record in report["probes"] if record["verdict"] == "error"]
            raise SwayFailure("\n".join(errors) or f"the report has no record of {self.probe}")
        judge(records[self.occurrence])


class GateItem(SwayItem):
    """Test of the score of a suite."""

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
    """Test that fails with the reason why a mark or suite is invalid."""

    def __init__(self, *, problem, **more):
        super().__init__(**more)
        self.problem = problem

    def runtest(self):
        raise BadSuite(self.problem)


def judge(record):
    verdict, message = record["verdict"], describe(record)
    if verdict == "skip":
        pytest.skip(message)
    elif verdict in ("warn", "inconclusive"):
        warnings.warn(SwayWarning(message), stacklevel=1)
    elif verdict != "pass":
        raise SwayFailure(message)


def describe(record):
    message = f"{record['name']} ({record.get('kind', '?')}) {record['verdict']}: {record.get('message') or 'no message'}"
    numbers = []
    for key, name in [("raw", "raw"), ("z_score", "z"), ("p_adjusted", "p"), ("score", "score")]:
        if is_number(record.get(key)):
            numbers.append(f"{name} {record[key]:.4g}")
    return f"{message} [{', '.join(numbers)}]" if numbers else message
