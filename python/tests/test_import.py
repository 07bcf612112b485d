"""`import weightloom`: at most a tenth of a second, without the packages that it uses when they are needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SECONDS = 0.1

# All of these are installed where the tests run.
OPTIONAL = ["IPython", "matplotlib", "numpy", "peft", "safetensors", "torch", "transformers"]

PROGRAM = """
import json, sys, time
begin = time.process_time()
import weightloom
seconds = time.process_time() - begin
print(json.dumps([seconds, sorted(name for name in sys.modules if "." not in name)]))
"""


def imported(cache: Path, *options: str) -> tuple[float, list[str], str]:
    """Seconds, top-level modules, and what Python says of it. Modules are compiled once, as for a user."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(cache)
    command = [sys.executable, *options, "-c", PROGRAM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    seconds, modules = json.loads(done.stdout)
    return seconds, modules, done.stderr


def test_an_import_is_fast_and_imports_no_other_package(tmp_path: Path) -> None:
    _, modules, account = imported(tmp_path, "-X", "importtime")
    assert "weightloom._weightloom" in account
    assert not set(modules) & set(OPTIONAL)
    # The best of some, in seconds of the processor: other programs run on the machine.
    seconds = min(imported(tmp_path)[0] for _ in range(7))
    slowest = imported(tmp_path, "-X", "importtime")[2].splitlines()[1:]
    slowest.sort(key=lambda line: -int(line.split("|")[0].removeprefix("import time:")))
    assert seconds <= SECONDS, "\n".join([f"{seconds:.3f} s", *slowest[:10]])


def test_these_packages_are_installed() -> None:
    # Otherwise the test above could not fail.
    from importlib.util import find_spec

    assert [name for name in OPTIONAL if find_spec(name) is None] == []
