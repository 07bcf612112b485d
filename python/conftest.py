"""What all tests of the Python module share: their environment, and a folder for each example of a docstring."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

# Before torch and transformers are imported. Nothing is downloaded, and ranks share the processors.
os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
    # Some virtual machines advertise AMX and do not allow it: torch's bf16 products end with an illegal instruction.
    "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16",
    # Plots go to files.
    "MPLBACKEND": "agg",
}

# Shells start what runs in their background without Ctrl-C. Tests send it to themselves and to programs.
signal.signal(signal.SIGINT, signal.default_int_handler)

QUICKSTART = "weightloom-quickstart"
"""The folder that `weightloom quickstart` makes. Examples that name it find it."""


@pytest.fixture(autouse=True)
def folder_of_an_example(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the example of a docstring in an empty folder, with `wl` imported."""
    if not isinstance(request.node, pytest.DoctestItem):
        return
    folder: Path = request.getfixturevalue("tmp_path")
    monkeypatch.chdir(folder)
    if QUICKSTART in request.node.dtest.docstring:
        (folder / QUICKSTART).symlink_to(request.getfixturevalue("quickstart"))
    namespace: dict[str, Any] = request.getfixturevalue("doctest_namespace")
    import weightloom

    namespace["wl"] = weightloom


@pytest.fixture(scope="session")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a short `weightloom quickstart`: a small model, an adapter of it, texts, configs and a suite."""
    import subprocess
    import sys

    folder = tmp_path_factory.mktemp("quickstart")
    command = [sys.executable, "-m", "weightloom", "quickstart", "--steps", "4"]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return folder / QUICKSTART
