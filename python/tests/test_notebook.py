"""The notebook `examples/tour.ipynb` runs from its first cell to its verdict.

Its outputs are not in the repository: times, losses and versions would be those of its last execution, and every
execution would be a change. The test executes all cells, and says what their outputs must show.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples/tour.ipynb"

# On two idle cores it takes half a minute; other programs run on the machine.
SECONDS = 240


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The notebook with its outputs."""
    folder, temporary = tmp_path_factory.mktemp("notebook"), tmp_path_factory.mktemp("temporary")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = nbclient.NotebookClient(
        notebook, kernel_name="python3", timeout=SECONDS, resources={"metadata": {"path": str(folder)}}
    )
    # Plots are outputs of cells, as for a user.
    environment = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
    begin = time.monotonic()
    # Raises the exception of the first cell that fails.
    client.execute(env=environment | {"TMPDIR": str(temporary)})
    assert time.monotonic() - begin < SECONDS
    # It leaves nothing, but for a cache of torch.
    assert list(folder.iterdir()) == []
    assert [path for path in temporary.iterdir() if not path.name.startswith("torchinductor_")] == []
    return notebook


def outputs(notebook: Any, code: str) -> list[Any]:
    """The outputs of the cell that has this code."""
    [cell] = [cell for cell in notebook.cells if cell.cell_type == "code" and code in cell.source]
    return list(cell.outputs)


def shown(notebook: Any, code: str) -> dict[str, str]:
    """What a cell ends with, by media type."""
    data: dict[str, str] = outputs(notebook, code)[-1].data
    return data


def printed(notebook: Any, code: str) -> str:
    return "".join(output.text for output in outputs(notebook, code) if output.output_type == "stream")


def test_the_repository_has_the_notebook_without_outputs() -> None:
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    codes = [cell for cell in cells if cell.cell_type == "code"]
    assert len(codes) > 10
    assert all(cell.outputs == [] and cell.execution_count is None for cell in codes)


CONTENTS = {
    "pretrained = wl.train(": ["finished at step 200 of 200", "<polyline", "learning rate"],
    "wl.open(pretrained.checkpoint)": ["63 tensors", "model.embed_tokens.weight", "fingerprint [0-9a-f]{32}", "trainer"],
    'wl.diff("model"': ["0 of 21 tensors", "f32 and bf16", "model.norm.weight"],
    "tuned = wl.train(": ["finished at step 100 of 100", "<polyline"],
    "wl.judge(\"suite.yaml\")": ["Did it learn what it was trained on", "choices", "old_text"],
}
"""What tables show, by the code of their cell."""


def test_checkpoints_diffs_runs_and_reports_are_tables(executed: Any) -> None:
    for code, contents in CONTENTS.items():
        html = shown(executed, code)["text/html"]
        assert "<table" in html, code
        assert [content for content in contents if not re.search(content, html)] == [], code


def test_the_loss_falls(executed: Any) -> None:
    first, last = map(float, re.findall(r"<span>([0-9.]+)</span>", shown(executed, "pretrained = wl.train(")["text/html"]))
    assert first > 5
    assert last < 0.5


def test_the_verdict_is_the_one_that_the_text_names(executed: Any) -> None:
    text = shown(executed, 'wl.judge("suite.yaml")')["text/plain"]
    assert text.startswith("<Report: Learned, and damaged")


def test_fingerprints_are_those_of_the_elements(executed: Any) -> None:
    first, copy, rounded = json.loads(shown(executed, ".fingerprint()")["text/plain"].replace("'", '"'))
    assert first == copy != rounded


def test_the_model_speaks_in_two_voices(executed: Any) -> None:
    before = printed(executed, 'model = wl.Model("model")')
    assert "A rank is one worker of a job" in before
    assert "my dear" not in before
    assert "my dear" in printed(executed, 'wl.Model("tuned")')


def test_plots_are_images(executed: Any) -> None:
    for code in ("pretrained.plot();", "report.plot();"):
        assert shown(executed, code)["image/png"], code


def test_bars_of_progress_end_as_text(executed: Any) -> None:
    for bar in bars(executed):
        assert "<progress" not in bar
    assert any("step 200 of 200" in bar for bar in bars(executed))


def bars(notebook: Any) -> Iterator[str]:
    """The outputs that are not the value of a cell."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.output_type == "display_data" and "text/html" in output.data:
                yield output.data["text/html"]
