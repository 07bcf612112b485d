"""The wheel: what is in it, and what it does in a virtual environment without anything else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
import time
import venv
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


def maturin(*arguments: str | Path) -> None:
    """Runs maturin on the repository, with the library that is compiled already."""
    command = [sys.executable, "-m", "maturin", *arguments]
    cargo = {"CARGO": str(Path(__file__).with_name("compiled-cargo"))}
    subprocess.run(command, cwd=REPOSITORY, env=os.environ | cargo, check=True)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel as a release has it, but with the library of the tests."""
    folder = tmp_path_factory.mktemp("wheel")
    maturin("build", "--profile", "test", "--strip", "--compatibility", "linux", "--out", folder)
    [wheel] = folder.iterdir()
    return wheel


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a fresh virtual environment, in which only the wheel is installed."""
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder, with_pip=True)
    programs = folder / "bin"
    install = [programs / "python", "-m", "pip", "install", "--quiet", "--no-index", "--no-cache-dir", wheel]
    subprocess.run(install, check=True)
    return programs


def clean() -> dict[str, str]:
    """The environment of a user: without the module of the repository."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def output(folder: Path, *command: str | Path) -> str:
    """What a program prints."""
    done = subprocess.run(command, cwd=folder, env=clean(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_has_the_module_its_types_and_its_licences(wheel: Path) -> None:
    python, abi, _platform = wheel.stem.split("-")[-3:]
    assert (python, abi) == ("cp311", "abi3")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        [metadata] = [name for name in names if name.endswith(".dist-info/METADATA")]
        text = archive.read(metadata).decode()
    module = {name.removeprefix("weightloom/") for name in names if name.startswith("weightloom/")}
    sources = {path.relative_to(REPOSITORY / "python/weightloom") for path in files(REPOSITORY / "python/weightloom")}
    assert module == {str(path) for path in sources} | {"_weightloom.abi3.so"}
    assert {"__init__.py", "py.typed", "_weightloom.pyi"} <= module
    licences = {name.rpartition("/")[2] for name in names if ".dist-info/licenses/" in name}
    assert licences == {"LICENSE-APACHE", "LICENSE-MIT"}
    others = {name for name in names if not name.startswith("weightloom/") and ".dist-info/" not in name}
    assert others == set()
    # NumPy, torch and transformers are used if they are there.
    assert "Requires-Dist" not in text
    assert "Requires-Python: >=3.11" in text


def files(folder: Path) -> list[Path]:
    """The files of a package, without what Python and the build leave in it."""
    return [
        path
        for path in folder.rglob("*")
        if path.is_file() and path.suffix not in {".pyc", ".so"} and "__pycache__" not in path.parts
    ]


def test_the_source_distribution_has_all_that_cargo_needs(tmp_path: Path) -> None:
    maturin("sdist", "--out", tmp_path)
    [archive] = tmp_path.iterdir()
    with tarfile.open(archive) as sources:
        sources.extractall(tmp_path, filter="data")
    root = tmp_path / archive.name.removesuffix(".tar.gz")
    for name in ["README.md", "LICENSE-APACHE", "LICENSE-MIT", "Cargo.lock", "python/weightloom/__init__.py"]:
        assert (root / name).is_file(), name
    # Fails if a crate of the workspace or a target that its manifest names is missing.
    metadata = json.loads(output(root, "cargo", "metadata", "--offline", "--no-deps", "--format-version", "1"))
    names = {package["name"] for package in metadata["packages"]}
    assert {"weightloom-python", "weightloom"} <= names
    tree = output(root, "cargo", "tree", "--offline", "--package", "weightloom-python", "--depth", "1")
    assert "weightloom v" in tree


def test_the_command_is_installed_with_the_module(programs: Path, tmp_path: Path) -> None:
    version = output(tmp_path, programs / "weightloom", "--version")
    assert version.startswith("weightloom ")
    number = output(tmp_path, programs / "python", "-c", "import weightloom; print(weightloom.__version__)")
    assert version.split()[1] == number.strip()
    usage = output(tmp_path, programs / "python", "-m", "weightloom", "--help")
    assert usage == output(tmp_path, programs / "weightloom", "--help")
    assert "Usage: weightloom" in usage


def test_the_command_has_the_exit_codes_of_the_program(programs: Path, tmp_path: Path) -> None:
    command = [programs / "weightloom", "inspect", "missing.safetensors"]
    done = subprocess.run(command, cwd=tmp_path, env=clean(), capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")


def test_an_import_takes_a_tenth_of_a_second(programs: Path, tmp_path: Path) -> None:
    code = "import time; start = time.process_time(); import weightloom; print(time.process_time() - start)"
    # The best of some, in seconds of the processor: other programs run on the machine.
    seconds = min(float(output(tmp_path, programs / "python", "-c", code)) for _ in range(5))
    assert seconds <= 0.1


def test_the_quickstart_runs_with_nothing_but_the_wheel(programs: Path, tmp_path: Path) -> None:
    text = output(tmp_path, programs / "weightloom", "quickstart", "--json", "--steps", "2")
    summary = json.loads(text)
    assert summary["certificate"]["equal"] is True
    assert (tmp_path / summary["verdict"]["html"]).is_file()


def test_ctrl_c_stops_the_command_and_keeps_what_was_learned(programs: Path, tmp_path: Path) -> None:
    command = [programs / "weightloom", "quickstart", "--steps", "1000000"]
    tour = subprocess.Popen(command, cwd=tmp_path, env=clean(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        metrics = tmp_path / "weightloom-quickstart/pretrain/metrics.jsonl"
        while not metrics.exists() or not metrics.read_bytes():
            assert tour.poll() is None, "it ended by itself"
            time.sleep(0.05)
        tour.send_signal(signal.SIGINT)
        _, error = tour.communicate(timeout=60)
    finally:
        tour.kill()
    assert tour.returncode == 3, error
    assert b"stopped at step" in error
    assert list((metrics.parent / "checkpoints").iterdir())
