"""What a release consists of: names that several files agree on."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
TARGETS = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu", "aarch64-apple-darwin"]


def manifest(name: str) -> dict:
    return tomllib.loads((REPOSITORY / name).read_text())


@pytest.mark.parametrize("target", TARGETS)
def test_cargo_binstall_looks_for_the_archives_that_are_built(target: str) -> None:
    metadata = manifest("crates/weightloom/Cargo.toml")["package"]["metadata"]["binstall"]
    version = manifest("Cargo.toml")["workspace"]["package"]["version"]
    values = {
        "repo": "REPOSITORY", "name": "weightloom", "version": version, "target": target, "bin": "weightloom",
        "binary-ext": "", "archive-suffix": ".tar.gz",
    }
    assert metadata["pkg-fmt"] == "tgz"

    def rendered(template: str) -> str:
        return re.sub(r"\{ ([a-z-]+) \}", lambda found: values[found[1]], template)

    command = [REPOSITORY / "scripts/dist", "--name", target]
    name = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert rendered(metadata["pkg-url"]) == f"REPOSITORY/releases/download/v{version}/{name}.tar.gz"
    assert rendered(metadata["bin-dir"]) == f"{name}/weightloom"


def test_every_target_has_a_binary_and_a_wheel() -> None:
    workflow = (REPOSITORY / ".github/workflows/release.yml").read_text()
    jobs = re.split(r"(?m)^  (?=[a-z]+:$)", workflow.partition("\njobs:\n")[2])
    for job in ["binaries", "wheels"]:
        [text] = [text for text in jobs if text.startswith(f"{job}:\n")]
        assert re.findall(r"target: ([a-z0-9_-]+)", text) == TARGETS


def test_maturin_has_one_version_everywhere() -> None:
    requirements = (REPOSITORY / "python/requirements-test.txt").read_text()
    [pinned] = re.findall(r"(?m)^maturin==(.*)$", requirements)
    [required] = manifest("pyproject.toml")["build-system"]["requires"]
    least, below = re.fullmatch(r"maturin>=([0-9.]+),<([0-9]+)", required).groups()
    assert pinned.startswith(least)
    assert int(pinned.split(".")[0]) < int(below)


def test_a_release_names_the_place_of_its_archives(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "crates/weightloom").mkdir(parents=True)
    shutil.copy(REPOSITORY / "scripts/release", tmp_path / "scripts/release")
    shutil.copy(REPOSITORY / "Cargo.toml", tmp_path / "Cargo.toml")
    (tmp_path / "CHANGELOG.md").write_text("## [Unreleased]\n\n### Added\n- A change.\n")
    lines = (REPOSITORY / "crates/weightloom/Cargo.toml").read_text().splitlines(keepends=True)
    without = "".join(line for line in lines if not line.startswith("repository"))
    (tmp_path / "crates/weightloom/Cargo.toml").write_text(without)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=release", "-c", "user.email=release@localhost"]
    for arguments in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message", "all"]):
        subprocess.run([*git, *arguments], check=True)
    done = subprocess.run([tmp_path / "scripts/release", "9.9.9"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "has no `repository`, so `cargo binstall` would not find the archives" in done.stderr
