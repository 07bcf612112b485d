"""Progress bars, on terminals and in notebooks."""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Literal, Protocol

from weightloom._amounts import size
from weightloom._errors import UserError
from weightloom._visible import visible

if TYPE_CHECKING:
    from typing import TextIO

Mode = Literal["auto", "off"]

_INTERVAL = 0.1
"""Seconds between two pictures of a bar."""

_DELAY = 0.5
"""Seconds of work before a bar appears: what is done by then needs none."""

_mode: Mode = "auto"


def set_progress(mode: Mode) -> None:
    """Chooses whether long work shows its progress.

    Args:
        mode: `"auto"`, the default, shows bars on stderr if that is a terminal, and in notebooks; `"off"` shows none.

    Raises:
        UserError: there is no such mode.

    Example:
        >>> import weightloom as wl
        >>> wl.set_progress("off")
        >>> wl.set_progress("auto")
    """
    global _mode
    if mode not in ("auto", "off"):
        raise UserError(f"cannot set the progress to {mode!r}: there is no such mode", 'use "auto" or "off"')
    _mode = mode


class Display(Protocol):
    """What shows a bar."""

    def show(self, bar: str, fraction: float | None, note: str) -> None:
        """Replaces the picture; `fraction` is the part that is done, if the whole is known."""

    def close(self, bar: str) -> None:
        """Shows the last picture."""


class Progress:
    """Progress of one piece of work. The native module calls it, from several threads at once."""

    def __init__(self, display: Display | None = None) -> None:
        self._display = display
        self._lock = threading.Lock()
        self._work = ""
        self._total = 0
        self._done = 0
        self._began = self._created = time.monotonic()
        self._shown = 0.0
        self.notes: list[str] = []
        """Lines of status."""

    def begin(self, work: str, total: int) -> None:
        """A part of the work begins, of so many bytes. Parts of one kind are added up."""
        with self._lock:
            if work != self._work:
                self._work, self._total, self._done, self._began = work, 0, 0, time.monotonic()
            self._total += total

    def advance(self, count: int) -> None:
        """So many more bytes are done."""
        with self._lock:
            self._done += count
            self._draw()

    def status(self, line: str) -> None:
        """A line of status."""
        with self._lock:
            self.notes.append(line)
            self._draw()

    def result(self, json: str) -> None:
        """A result, which the caller gets in the end."""

    def close(self) -> None:
        """The work has ended, well or not."""
        with self._lock:
            if self._display is not None and self._shown:
                with contextlib.suppress(Exception):
                    self._display.close(self._bar())

    def _draw(self) -> None:
        now = time.monotonic()
        is_due = now - self._shown >= _INTERVAL and now - self._created >= _DELAY
        if self._display is None or not is_due:
            return
        self._shown = now
        fraction = min(self._done / self._total, 1.0) if self._total else None
        try:
            self._display.show(self._bar(), fraction, self.notes[-1] if self.notes else "")
        except Exception:
            # A closed terminal is no reason to end the work.
            self._display = None

    def _bar(self) -> str:
        seconds = time.monotonic() - self._began
        text = f"{self._work or 'working'}: {size(self._done)}"
        if self._total:
            text += f" of {size(self._total)}"
        return f"{text}, {size(int(self._done / seconds))}/s" if seconds > 0 else text


class TerminalDisplay:
    """A line of a terminal that is written again and again."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._note = ""

    def show(self, bar: str, fraction: float | None, note: str) -> None:
        """Writes the line again."""
        import shutil

        above = f"{visible(note)}\n" if note != self._note else ""
        self._note = note
        drawn = "" if fraction is None else f"[{'█' * int(fraction * 24):<24}] "
        line = f"{drawn}{visible(bar)}"[: shutil.get_terminal_size().columns - 1]
        self._stream.write(f"\r\x1b[2K{above}{line}")
        self._stream.flush()

    def close(self, bar: str) -> None:
        """Removes the line."""
        self._stream.write("\r\x1b[2K")
        self._stream.flush()


class NotebookDisplay:
    """An output of a notebook's cell that is replaced again and again."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, bar: str, fraction: float | None, note: str) -> None:
        """Replaces the output."""
        from weightloom._html import escape

        value = "" if fraction is None else f' value="{fraction:.4f}"'
        below = f"<br><small>{escape(note)}</small>" if note else ""
        self._replace(f"<div><progress{value}></progress> {escape(bar)}{below}</div>")

    def close(self, bar: str) -> None:
        """Leaves what was done as text."""
        from weightloom._html import escape

        self._replace(f"<div>{escape(bar)}</div>")

    def _replace(self, html: str) -> None:
        display = importlib.import_module("IPython.display")
        if self._handle is None:
            self._handle = display.display(display.HTML(html), display_id=True)
        else:
            self._handle.update(display.HTML(html))


def new_progress() -> Progress:
    """Progress that is shown where it can be."""
    return Progress(new_display())


def new_display() -> Display | None:
    """What shows bars here, if anything does."""
    if _mode == "off":
        return None
    if is_notebook():
        return NotebookDisplay()
    stream = sys.stderr
    # A program without a console has none.
    if stream is not None and stream.isatty():
        return TerminalDisplay(stream)
    return None


def is_notebook() -> bool:
    """Whether this is the kernel of a notebook."""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return get_shell is not None and hasattr(get_shell(), "kernel")
