"""Tests of the pytest plugin with a fake `weightloom`.

    pip install pytest pyyaml
    pytest integrations/test_plugin.py
"""

import json
import sys

import pytest

pytest_plugins = ["pytester"]

# Writes the prepared report, and logs its calls.
FAKE_COMMAND = """
import pathlib, sys
folder = pathlib.Path(__file__).parent
with (folder / "calls").open("a") as calls:
    print(*sys.argv[1:], file=calls)
if (folder / "error").exists():
    print((folder / "error").read_text(), file=sys.stderr)
    sys.exit(2)
assert sys.argv[1:3] == ["sway", "run"], sys.argv
if (folder / "report.json").exists():
    target = pathlib.Path(sys.argv[sys.argv.index("--json") + 1])
    target.write_text((folder / "report.json").read_text())
"""


def record(name, verdict, **more):
    return {"name": name, "kind": "delta_kl", "verdict": verdict, "message": f"{name} says so", **more}


def report(*records, overall=0.7):
    return {"probes": list(records), "score": {"overall": overall, "findings": ["something is low"]}}


@pytest.fixture
def project(pytester):
    """A folder with the plugin, suites and the fake command."""

    class Project:
        def suite(self, *names, file="sway.yaml"):
            entries = "".join(f"  - {{name: {name}, kind: delta_kl}}\n" for name in names)
            (pytester.path / file).write_text(f"version: 1\nsuite:\n{entries}")

        def answer(self, found):
            (pytester.path / "report.json").write_text(json.dumps(found))

        def error(self, text):
            (pytester.path / "error").write_text(text)

        def tests(self, text):
            pytester.makepyfile(test_it=f"import pytest\n{text}")

        def run(self, *arguments):
            return pytester.runpytest_inprocess("-p", "pytest_weightloom_sway", "--strict-markers", *arguments)

        def calls(self):
            file = pytester.path / "calls"
            return file.read_text().splitlines() if file.exists() else []

    (pytester.path / "fake_command.py").write_text(FAKE_COMMAND)
    pytester.makeini(f"[pytest]\nsway_command = {sys.executable} {pytester.path / 'fake_command.py'}\n")
    return Project()


def test_verdicts_map_to_outcomes(project):
    verdicts = ["pass", "fail", "error", "skip", "warn", "inconclusive"]
    project.suite(*[f"a_{verdict}" for verdict in verdicts])
    project.answer(report(*[record(f"a_{verdict}", verdict, raw=0.5, p_adjusted=0.04) for verdict in verdicts]))
    project.tests("@pytest.mark.sway('sway.yaml')\ndef test_adapter(): assert False, 'the body must not run'")
    result = project.run("-v", "-rs")
    result.assert_outcomes(passed=3, failed=2, skipped=1, warnings=2)
    result.stdout.fnmatch_lines(
        [
            "test_it.py::test_adapter::a_pass PASSED*",
            "test_it.py::test_adapter::a_fail FAILED*",
            "a_fail (delta_kl) fail: a_fail says so [[]raw 0.5, p 0.04[]]",
            "*SwayWarning: a_warn*",
            "*SwayWarning: a_inconclusive*",
        ]
    )
    assert "__gate__" not in result.stdout.str()


def test_a_suite_runs_once_and_only_if_needed(project):
    project.suite("one", "two")
    project.answer(report(record("one", "pass"), record("two", "pass")))
    project.tests(
        """
@pytest.mark.sway('sway.yaml', threshold=0.6)
def test_a(): ...
@pytest.mark.sway(spec='./sway.yaml')
def test_b(): ...
@pytest.mark.sway('sway.yaml', weights={'ablation': 0, 'adherence': 0.5})
def test_c(): ...
@pytest.mark.sway('sway.yaml', weights={'adherence': 0.5, 'ablation': 0})
def test_d(): ...
def test_other(): ...
"""
    )
    project.run("--collect-only").assert_outcomes()
    project.run("-k", "other").assert_outcomes(passed=1, deselected=9)
    assert project.calls() == []
    project.run().assert_outcomes(passed=10)
    assert len(project.calls()) == 2
    assert project.calls()[1].endswith("--weights ablation=0,adherence=0.5")


def test_the_gate_checks_the_score(project):
    project.suite("one")
    project.answer(report(record("one", "pass"), overall=0.55))
    project.tests("@pytest.mark.sway('sway.yaml', threshold=0.6)\ndef test_a(): ...")
    result = project.run()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["the score is 0.550, below 0.6", "- something is low"])


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        ("sway", "*missing*spec*"),
        ("sway('sway.yaml', treshold=1)", "*treshold*"),
        ("sway('sway.yaml', threshold='high')", "*expected a number from 0 to 1*"),
        ("sway('sway.yaml', threshold=2)", "*expected a number from 0 to 1*"),
        ("sway('sway.yaml', weights=['adherence'])", "*invalid weights*of the mark*"),
        ("sway('sway.yaml', weights={'adherence': -1})", "*invalid weights*of the mark*"),
        ("sway(3)", "*invalid spec 3 of the mark*"),
        ("sway('nowhere.yaml')", "*cannot read *nowhere.yaml*"),
        ("sway('broken.yaml')", "*cannot parse *broken.yaml*"),
        ("sway('list.yaml')", "*the top level is not a map*"),
        ("sway('nameless.yaml')", "*entry 1 has no name*"),
        ("sway('empty.yaml')", "*has no probes*"),
    ],
)
def test_an_invalid_mark_or_suite_is_one_failure(project, pytester, mark, message):
    project.suite("one")
    (pytester.path / "broken.yaml").write_text("suite: [")
    (pytester.path / "list.yaml").write_text("- 1")
    (pytester.path / "nameless.yaml").write_text("suite: [{kind: delta_kl}]")
    (pytester.path / "empty.yaml").write_text("version: 1")
    project.tests(f"@pytest.mark.{mark}\ndef test_a(): ...\ndef test_b(): ...")
    result = project.run()
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines([message])
    assert project.calls() == []


def test_two_marks_are_one_failure(project):
    project.suite("one")
    project.tests("@pytest.mark.sway('sway.yaml')\n@pytest.mark.sway('sway.yaml')\ndef test_a(): ...")
    project.run().assert_outcomes(failed=1)


def test_a_failing_command_fails_every_test_and_is_called_once(project):
    project.suite("one", "two")
    project.error("error: sway.yaml:3: there is no probe `delta_lk`")
    project.tests("@pytest.mark.sway('sway.yaml', threshold=0.1)\ndef test_a(): ...")
    result = project.run()
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(["*exited with 2: error: sway.yaml:3: there is no probe `delta_lk`"])
    assert len(project.calls()) == 1


def test_a_missing_command_is_reported(project, pytester):
    project.suite("one")
    pytester.makeini("[pytest]\nsway_command = no-such-command\n")
    project.tests("@pytest.mark.sway('sway.yaml')\ndef test_a(): ...")
    result = project.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["cannot start no-such-command*"])


def test_a_missing_report_is_reported(project):
    project.suite("one")
    project.tests("@pytest.mark.sway('sway.yaml')\ndef test_a(): ...")
    result = project.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*wrote no valid report*"])


def test_a_failed_preflight_fails_every_probe(project):
    project.suite("one", "two")
    project.answer(report(record("__preflight__", "error")))
    project.tests("@pytest.mark.sway('sway.yaml')\ndef test_a(): ...")
    result = project.run()
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["__preflight__ * error: __preflight__ says so"])


def test_entries_with_equal_names_have_separate_records(project):
    project.suite("one", "one")
    project.answer(report(record("one", "pass"), record("one", "fail")))
    project.tests("@pytest.mark.sway('sway.yaml')\ndef test_a(): ...")
    project.run().assert_outcomes(passed=1, failed=1)


def test_other_marks_apply(project):
    project.suite("one")
    project.answer(report(record("one", "fail")))
    project.tests(
        """
@pytest.mark.skip(reason='not today')
@pytest.mark.sway('sway.yaml')
def test_a(): ...
@pytest.mark.xfail
@pytest.mark.sway('sway.yaml')
def test_b(): ...
"""
    )
    project.run().assert_outcomes(skipped=1, xfailed=1)
    project.run("-m", "not sway").assert_outcomes(deselected=2)


def test_methods_can_be_marked(project):
    project.suite("one")
    project.answer(report(record("one", "pass")))
    project.tests("class TestAdapter:\n    @pytest.mark.sway('sway.yaml')\n    def test_a(self): ...")
    result = project.run("-v")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["test_it.py::TestAdapter::test_a::one PASSED*"])
