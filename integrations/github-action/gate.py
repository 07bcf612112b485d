"""Runs `weightloom sway gate` for the GitHub Action beside this file.

Reads its inputs from the environment, writes the reports to a folder, adds the
Markdown report to the summary of the job, and sets the outputs of the step.
Exits as the gate does: 0 passed, 1 refused, 2 a mistake, 3 a failure of the
machine or the network. With FAIL=false a refusal exits with 0.
"""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

# The longest summary that GitHub shows is 1 MiB.
SUMMARY_LIMIT = 1_000_000
REFUSED = 1


def arguments(env, folder):
    """The command line of the gate."""
    line = [*shlex.split(env.get("COMMAND") or "weightloom"), "sway", "gate", env.get("SUITE") or "sway.yaml"]
    if env.get("THRESHOLD"):
        line += ["--threshold", env["THRESHOLD"]]
    for option, name in [("--html", "html"), ("--json", "json"), ("--markdown", "md"), ("--junit", "xml")]:
        line += [option, str(folder / f"report.{name}")]
    return line + shlex.split(env.get("ARGUMENTS", ""))


def append(file, text):
    """Appends to a file that GitHub names; elsewhere there is none."""
    if file:
        with open(file, "a", encoding="utf-8") as out:
            out.write(text)


def summary(folder):
    report = folder / "report.md"
    if not report.exists():
        return ""
    text = report.read_text(encoding="utf-8")
    if len(text.encode()) > SUMMARY_LIMIT:
        return "The report is too long for this page; it is in the artifact.\n"
    return text + "\n"


def score(folder):
    report = folder / "report.json"
    return json.loads(report.read_text(encoding="utf-8"))["score"]["overall"] if report.exists() else ""


def main(env):
    folder = Path(env.get("FOLDER") or "sway-report")
    folder.mkdir(parents=True, exist_ok=True)
    code = subprocess.run(arguments(env, folder), check=False).returncode
    append(env.get("GITHUB_STEP_SUMMARY"), summary(folder))
    passed = "true" if code == 0 else "false"
    append(env.get("GITHUB_OUTPUT"), f"passed={passed}\nscore={score(folder)}\nfolder={folder}\n")
    if code == REFUSED and env.get("FAIL", "true").lower() == "false":
        print("::warning title=sway gate::refused; the report is in the artifact")
        return 0
    if code != 0:
        print(f"::error title=sway gate::{'refused' if code == REFUSED else 'could not run'}")
    return code


if __name__ == "__main__":
    sys.exit(main(os.environ))
