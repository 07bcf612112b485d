"""The Python code of README.md and docs/python.md runs as it is written, scaled down, and everything has an example."""

from __future__ import annotations

import doctest
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import weightloom as wl

REPOSITORY = Path(__file__).parents[2]

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    line: int
    text: str


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found, language, start, lines = [], None, 0, []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if not line.startswith("```"):
            lines.append(line)
        elif language is None:
            language, start, lines = line[3:], number, []
        else:
            found.append(Block(language, start, "\n".join(lines) + "\n"))
            language = None
    return found


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quickstart: Path) -> Path:
    """A folder with what the pages assume: a model, an adapter of it, and the files of a run and a suite."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(quickstart, tmp_path / "weightloom-quickstart")
    for name, run in [("my-model", "pretrain"), ("my-adapter", "tune")]:
        [checkpoint] = (quickstart / run / "checkpoints").glob("step_*")
        shutil.copytree(checkpoint, tmp_path / name)
    # The adapter names its base by the path it was trained from.
    config = tmp_path / "my-adapter/adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"base_model_name_or_path": "my-model"}))
    shutil.copy(tmp_path / "weightloom-quickstart/kitchen.md", "notes.md")
    return tmp_path


def run_script(place: Path, block: Block, page: Path) -> None:
    """Writes a script under the name in its first line, and runs it; on two processes if it asks for several."""
    name = block.text.splitlines()[0].removeprefix("# ")
    (place / name).write_text(block.text)
    command = TORCHRUN if "init_process_group" in block.text else [sys.executable]
    done = subprocess.run([*command, name], env=os.environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{page.name}:{block.line}: {name}\n{done.stdout}{done.stderr}"


def run_block(block: Block, page: Path, namespace: dict[str, Any]) -> None:
    """Runs a block with the names of those before it. Its lines in a traceback are those of the page."""
    exec(compile("\n" * block.line + block.text, str(page), "exec"), namespace)


@pytest.mark.parametrize("name", ["README.md", "docs/python.md"])
def test_the_code_of_a_page_runs(name: str, place: Path) -> None:
    import torch

    page = REPOSITORY / name
    # What a reader has: the README does not define it.
    namespace: dict[str, Any] = {"model": torch.nn.Linear(4, 2)} if name == "README.md" else {}
    ran = 0
    for block in blocks(page):
        if block.language == "yaml" and (named := re.match(r"# (\S+\.yaml)\n", block.text)):
            (place / named[1]).write_text(block.text)
        if block.language == "python":
            ran += 1
            if re.match(r"# \w+\.py\n", block.text):
                run_script(place, block, page)
            else:
                run_block(block, page, namespace)
    assert ran > 0


def examples(item: object) -> str:
    """The code of the examples in a docstring. pytest runs all of them."""
    text = inspect.getdoc(item) or ""
    return "".join(example.source for example in doctest.DocTestParser().get_examples(text))


def methods(kind: type) -> dict[str, Any]:
    """The public methods and properties that a class defines itself."""
    found = {name: item for name, item in vars(kind).items() if not name.startswith("_")}
    return {name: getattr(item, "__func__", item) for name, item in found.items()}


def test_every_public_function_is_documented_with_an_example() -> None:
    missing = []
    for name in wl.__all__:
        item = getattr(wl, name)
        if not (inspect.isfunction(item) or inspect.isclass(item)):
            continue
        if not inspect.getdoc(item):
            missing.append(f"{name}: documentation")
        if inspect.isfunction(item) and f"wl.{name}(" not in examples(item):
            missing.append(f"{name}: an example that calls it")
        if not inspect.isclass(item):
            continue
        of_class = methods(item)
        code = "".join(map(examples, [item, *of_class.values()]))
        for method, function in of_class.items():
            is_function = inspect.isfunction(function)
            if (is_function or isinstance(function, property)) and not function.__doc__:
                missing.append(f"{name}.{method}: documentation")
            # Events of a callback are overridden, not called: the example of the class shows how.
            if is_function and item is not wl.Callback and f".{method}(" not in code:
                missing.append(f"{name}.{method}: an example that calls it")
    assert missing == []
