"""Progress of training runs, on terminals and in notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightloom._progress import Progress

if TYPE_CHECKING:
    from weightloom._progress import Display

_TRAINING = "training"


class TrainingProgress(Progress):
    """A bar of steps, with the last loss, once the model and the data are read."""

    def __init__(self, display: Display | None = None) -> None:
        super().__init__(display)
        self._record: dict[str, Any] = {}
        self._seconds_left: float | None = None

    def train(self, step: int, total_steps: int) -> None:
        """The steps begin."""
        with self._lock:
            self._work, self._done, self._total = _TRAINING, step, total_steps
            self._steps = total_steps

    def log(self, record: dict[str, Any], seconds_left: float | None) -> None:
        """A step was recorded."""
        with self._lock:
            self._record, self._seconds_left = record, seconds_left
            # Evaluations read files in between.
            self._work, self._done, self._total = _TRAINING, record["step"], self._steps
            self._draw()

    def _bar(self) -> str:
        if self._work != _TRAINING:
            return super()._bar()
        loss, rate = self._record.get("loss"), self._record.get("tokens_per_second")
        parts = [f"step {self._done:,} of {self._steps:,}"]
        parts += [f"loss {loss:.4f}"] if loss is not None else []
        parts += [tokens_per_second(rate)] if rate is not None else []
        parts += [f"{duration(self._seconds_left)} left"] if self._seconds_left else []
        return " · ".join(parts)


def tokens_per_second(rate: float) -> str:
    """A throughput, as the command line prints it.

    Example:
        >>> from weightloom._training_progress import tokens_per_second
        >>> tokens_per_second(950.4), tokens_per_second(123456.0)
        ('950 tok/s', '123.5k tok/s')
    """
    return f"{rate:.0f} tok/s" if rate < 1e4 else f"{rate / 1e3:.1f}k tok/s"


def duration(seconds: float) -> str:
    """A time, as the command line prints it.

    Example:
        >>> from weightloom._training_progress import duration
        >>> duration(12.4), duration(185), duration(7260)
        ('12s', '3m05s', '2h01m')
    """
    whole = max(round(seconds), 0)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{rest:02}s" if minutes else f"{rest}s"
