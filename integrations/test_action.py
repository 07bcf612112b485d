"""Tests of the GitHub Action with a fake `weightloom`.

    pip install pytest pyyaml
    pytest integrations/test_action.py
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ACTION = Path(__file__).parent / "github-action"

# Writes reports as the gate does, logs its call, and exits as it is asked to.
FAKE_COMMAND = """
import json, os, pathlib, sys
folder = pathlib.Path(__file__).parent
(folder / "call").write_text(json.dumps(sys.argv[1:]))
code = int((folder / "code").read_text())
if code < 2:
    for option in ("--html", "--json", "--markdown", "--junit"):
        target = pathlib.Path(sys.argv[sys.argv.index(option) + 1])
        target.write_text(json.dumps({"score": {"overall": 0.42}}) if option == "--json" else "# Report\\n")
sys.exit(code)
"""


@pytest.fixture
def gate(tmp_path):
    """Runs gate.py; returns its exit code, outputs, summary and the gate's arguments."""
    (tmp_path / "fake.py").write_text(FAKE_COMMAND)

    def run(code, **inputs):
        for name in ("output", "summary", "call"):
            (tmp_path / name).unlink(missing_ok=True)
        (tmp_path / "code").write_text(str(code))
        env = {
            **os.environ,
            "COMMAND": f"{sys.executable} {tmp_path / 'fake.py'}",
            "FOLDER": str(tmp_path / "reports"),
            "GITHUB_OUTPUT": str(tmp_path / "output"),
            "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
            **inputs,
        }
        done = subprocess.run([sys.executable, ACTION / "gate.py"], env=env, capture_output=True, text=True)
        outputs = dict(line.split("=", 1) for line in (tmp_path / "output").read_text().splitlines())
        call = json.loads((tmp_path / "call").read_text())
        return done, outputs, (tmp_path / "summary").read_text(), call

    return run


def test_a_gate_that_passes(gate, tmp_path):
    done, outputs, summary, call = gate(0, SUITE="my.yaml", THRESHOLD="0.7", ARGUMENTS="--only 'a b,c'")
    assert done.returncode == 0
    assert outputs == {"passed": "true", "score": "0.42", "folder": str(tmp_path / "reports")}
    assert summary == "# Report\n\n"
    assert call[:5] == ["sway", "gate", "my.yaml", "--threshold", "0.7"]
    assert call[-2:] == ["--only", "a b,c"]
    assert (tmp_path / "reports" / "report.html").exists()


def test_a_refusal_fails_the_job_unless_it_may_not(gate):
    done, outputs, summary, call = gate(1)
    assert (done.returncode, outputs["passed"], summary) == (1, "false", "# Report\n\n")
    assert "::error title=sway gate::refused" in done.stdout
    assert call[2] == "sway.yaml" and "--threshold" not in call
    done, outputs, _, _ = gate(1, FAIL="false")
    assert (done.returncode, outputs["passed"]) == (0, "false")
    assert "::warning" in done.stdout


@pytest.mark.parametrize("code", [2, 3])
def test_mistakes_and_failures_always_fail_the_job(gate, code):
    done, outputs, summary, _ = gate(code, FAIL="false")
    assert (done.returncode, outputs["passed"], outputs["score"], summary) == (code, "false", "", "")
    assert "could not run" in done.stdout


def test_every_input_reaches_the_script_and_every_output_is_set(gate):
    action = yaml.safe_load((ACTION / "action.yml").read_text())
    text = (ACTION / "action.yml").read_text()
    for name in action["inputs"]:
        assert f"inputs.{name} " in text or f"inputs.{name})" in text, name
    step = next(step for step in action["runs"]["steps"] if step.get("id") == "gate")
    script = (ACTION / "gate.py").read_text()
    for name in step["env"]:
        # The program itself reads the cache's folder.
        assert name == "WEIGHTLOOM_CACHE_DIR" or f'"{name}"' in script, name
    _, outputs, _, _ = gate(0)
    used = re.findall(r"steps\.gate\.outputs\.(\w+)", text)
    assert set(used) <= set(outputs)
