"""Progress bars and tables: on terminals, in notebooks, and with hostile names."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import weightloom as wl
from weightloom import _html, _progress
from weightloom._progress import NotebookDisplay, Progress, TerminalDisplay


class Clock:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(_progress, "time", clock)
    return clock


class Recorder:
    """A display that keeps its pictures."""

    def __init__(self) -> None:
        self.shown: list[tuple[str, float | None, str]] = []
        self.closed: list[str] = []

    def show(self, bar: str, fraction: float | None, note: str) -> None:
        self.shown.append((bar, fraction, note))

    def close(self, bar: str) -> None:
        self.closed.append(bar)


def test_short_work_shows_no_bar(clock: Clock) -> None:
    recorder = Recorder()
    progress = Progress(recorder)
    progress.begin("reading", 100)
    clock.now += 0.4
    progress.advance(100)
    progress.close()
    assert recorder.shown == [] and recorder.closed == []


def test_a_bar_shows_amounts_and_speed(clock: Clock) -> None:
    recorder = Recorder()
    progress = Progress(recorder)
    progress.begin("reading", 3 << 20)
    progress.begin("reading", 1 << 20)
    clock.now += 1
    progress.advance(1 << 20)
    progress.advance(1 << 20)
    assert recorder.shown == [("reading: 1.0 MiB of 4.0 MiB, 1.0 MiB/s", 0.25, "")]
    clock.now += 1
    progress.status("retrying")
    assert recorder.shown[1:] == [("reading: 2.0 MiB of 4.0 MiB, 1.0 MiB/s", 0.5, "retrying")]
    progress.begin("hashing", 0)
    clock.now += 1
    progress.advance(512)
    assert recorder.shown[2:] == [("hashing: 512 B, 512 B/s", None, "retrying")]
    progress.close()
    assert recorder.closed == ["hashing: 512 B, 512 B/s"]
    assert progress.notes == ["retrying"]


def test_more_than_was_announced_is_a_full_bar(clock: Clock) -> None:
    recorder = Recorder()
    progress = Progress(recorder)
    progress.begin("reading", 1)
    clock.now += 1
    progress.advance(3)
    assert [fraction for _, fraction, _ in recorder.shown] == [1.0]


def test_a_display_that_fails_does_not_end_the_work(clock: Clock) -> None:
    class Closed(io.StringIO):
        def write(self, _text: str) -> int:
            raise BrokenPipeError

    progress = Progress(TerminalDisplay(Closed()))
    clock.now += 1
    progress.advance(1)
    clock.now += 1
    progress.advance(1)
    progress.close()

    class ClosedLater(Recorder):
        def close(self, bar: str) -> None:
            raise ValueError("I/O operation on closed file")

    progress = Progress(ClosedLater())
    clock.now += 1
    progress.advance(1)
    progress.close()


def test_a_terminal_line_is_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    stream = io.StringIO()
    display = TerminalDisplay(stream)
    display.show("reading: 1 B of 2 B", 0.5, "")
    assert stream.getvalue() == "\r\x1b[2K[" + "█" * 12 + " " * 12 + "] reading: 1 B of 2 B"
    display.show("x" * 100, None, "a note")
    display.show("y", None, "a note")
    display.close("y")
    assert stream.getvalue().endswith("\r\x1b[2Ka note\n" + "x" * 59 + "\r\x1b[2Ky\r\x1b[2K")


def test_a_terminal_gets_no_escapes_of_others() -> None:
    stream = io.StringIO()
    TerminalDisplay(stream).show("downloading \x1b]0;title\x07\r\nname\x9b2J", 1.0, "a\x1b[31m\nnote\u202e")
    text = stream.getvalue().removeprefix("\r\x1b[2K")
    assert "\x1b" not in text.replace("\r\x1b[2K", "")
    assert not any(sign in text for sign in ["\x07", "\x9b", "\r", "\u202e"])
    assert text.count("\n") == 1


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A notebook's kernel; the pictures of its outputs."""
    pictures: list[str] = []

    class HTML:
        def __init__(self, text: str) -> None:
            self.text = text

    class Handle:
        def update(self, html: HTML) -> None:
            pictures.append(html.text)

    def display(html: HTML, display_id: bool) -> Handle:
        assert display_id
        pictures.append(html.text)
        return Handle()

    shell = types.SimpleNamespace(kernel=object())
    package: Any = types.ModuleType("IPython")
    package.get_ipython = lambda: shell
    displays: Any = types.ModuleType("IPython.display")
    displays.HTML, displays.display = HTML, display
    package.display = displays
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", displays)
    return pictures


def test_a_notebook_shows_a_bar_and_keeps_what_was_done(notebook: list[str], clock: Clock) -> None:
    progress = _progress.new_progress()
    progress.begin("<b>reading</b>", 4)
    clock.now += 1
    progress.advance(1)
    clock.now += 1
    progress.status("<script>alert(1)</script>")
    progress.close()
    assert len(notebook) == 3
    assert '<progress value="0.2500">' in notebook[0]
    assert "<script>" not in "".join(notebook) and "<b>" not in "".join(notebook)
    assert "&lt;script&gt;" in notebook[1]
    assert notebook[2] == "<div>&lt;b&gt;reading&lt;/b&gt;: 1 B of 4 B, 0 B/s</div>"


def test_progress_can_be_switched_off(notebook: list[str], clock: Clock) -> None:
    with pytest.raises(wl.UserError):
        wl.set_progress("loud")  # type: ignore[arg-type]
    wl.set_progress("off")
    try:
        progress = _progress.new_progress()
        clock.now += 1
        progress.advance(1)
        progress.close()
    finally:
        wl.set_progress("auto")
    assert notebook == []


def test_a_shell_is_no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    package: Any = types.ModuleType("IPython")
    monkeypatch.setitem(sys.modules, "IPython", package)
    for shell in [None, types.SimpleNamespace()]:
        package.get_ipython = lambda shell=shell: shell
        assert not _progress.is_notebook()
    # A module that is being imported, or one of another name.
    del package.get_ipython
    assert not _progress.is_notebook()


def test_pipes_get_no_bars(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    for stream in [io.StringIO(), None]:
        monkeypatch.setattr(sys, "stderr", stream)
        progress = _progress.new_progress()
        clock.now += 1
        progress.advance(1)
        progress.close()
        assert stream is None or stream.getvalue() == ""


def test_a_long_read_shows_a_bar_on_a_terminal(tmp_path: Path) -> None:
    program = """
import sys, weightloom as wl
from weightloom import _progress
_progress._DELAY = 0.0
wl.open(sys.argv[1]).fingerprint()
"""
    save_file({"w": torch.ones(1 << 20)}, tmp_path / "model.safetensors")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", program, str(tmp_path / "model.safetensors")]
    subprocess.run(command, stderr=theirs, check=True)
    os.close(theirs)
    written = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert "4.0 MiB" in written and "█" in written
    assert written.endswith("\r\x1b[2K")


def test_a_kernel_shows_a_bar_in_the_cell(tmp_path: Path) -> None:
    import nbclient
    import nbformat

    save_file({"w": torch.ones(1 << 20)}, tmp_path / "model.safetensors")
    code = f"""
import weightloom as wl
from weightloom import _progress
_progress._DELAY = 0.0
checkpoint = wl.open({str(tmp_path / "model.safetensors")!r})
checkpoint.fingerprint()
checkpoint
"""
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(code)]
    nbclient.NotebookClient(notebook, kernel_name="python3").execute()
    bar, table = notebook.cells[0].outputs
    assert bar.data["text/html"].startswith("<div>reading: 4.0 MiB of 4.0 MiB")
    assert "<table" in table.data["text/html"]


HOSTILE = "<img src=x onerror=alert(1)>&\"'"


def test_tables_escape_every_cell() -> None:
    text = _html.page(_html.headline(HOSTILE, ""), _html.table((HOSTILE, f"#{HOSTILE}"), [(HOSTILE, 1)], 1))
    assert "<img" not in text
    assert text.count("&lt;img src=x onerror=alert(1)&gt;&amp;&quot;&#x27;") == 4
    assert "text-align:right" in text


def test_long_tables_say_how_many_rows_they_hide() -> None:
    rows = ((number,) for number in range(1500))
    text = _html.table(("number",), rows, 1500)
    assert text.count("<tr>") == 1001
    assert "… and 500 more" in text
    # The rows that are not shown are not computed.
    assert next(rows) == (1001,)


def test_names_in_checkpoints_and_diffs_are_escaped(tmp_path: Path) -> None:
    save_file({HOSTILE: torch.ones(2)}, tmp_path / "one.safetensors")
    save_file({HOSTILE: torch.zeros(2)}, tmp_path / "two.safetensors")
    torch.save({HOSTILE: 1, "w": torch.ones(1)}, tmp_path / "three.pt")
    pictures = [
        wl.open(tmp_path / "one.safetensors")._repr_html_(),
        wl.open(tmp_path / "three.pt")._repr_html_(),
        wl.diff(tmp_path / "one.safetensors", tmp_path / "two.safetensors")._repr_html_(),
        wl.diff(tmp_path / "one.safetensors", tmp_path / "three.pt")._repr_html_(),
    ]
    for picture in pictures:
        assert "<img" not in picture
        assert "&lt;img" in picture
