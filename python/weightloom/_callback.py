"""Callbacks of training runs."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from weightloom._errors import UserError

if TYPE_CHECKING:
    from weightloom._training_progress import TrainingProgress

Record = dict[str, Any]
"""The metrics of one step: `step`, `loss`, `learning_rate`, `gradient_norm`, `tokens_per_second` and others."""


class Control(enum.Enum):
    """What a callback wants of its run."""

    STOP = "stop"
    """End it after the current step, with a checkpoint."""


STOP = Control.STOP
"""A callback returns this to end its run after the current step, with a checkpoint.

Example:
    >>> stop_when_good = lambda record: wl.STOP if record["loss"] < 2.0 else None
"""


class TrainerState(NamedTuple):
    """The state of a run, as callbacks see it."""

    step: int
    """Steps done."""
    total_steps: int
    """Steps of the whole run."""
    epoch: int
    """Epochs done."""
    ranks: int
    """Ranks that train."""
    seconds_left: float | None
    """Estimated remaining time."""
    config: dict[str, Any]
    """The resolved config."""


class StepResult(NamedTuple):
    """What a step computed."""

    loss: float
    """Mean loss over the targets of the global batch."""
    gradient_norm: float
    """Norm of all gradients before clipping."""
    targets: int
    """Target tokens of the global batch."""


class Evaluation(NamedTuple):
    """An evaluation on held-out data."""

    loss: float | None
    """Mean loss over all targets of the evaluation data, if there is any."""
    targets: int
    """Target tokens."""
    samples: list[tuple[str, str]]
    """Prompts, and the text generated for each."""


class Callback:
    """Base class of callbacks, with methods named as in transformers.

    Override the methods you need. Each may return `wl.STOP`, which ends the run after the current step, with a
    checkpoint. An exception ends it likewise, and `wl.train` raises it. With several ranks, the first one calls them.

    Example:
        >>> class StopAt(wl.Callback):
        ...     def __init__(self, loss):
        ...         self.loss = loss
        ...     def on_step_end(self, state, result):
        ...         return wl.STOP if result.loss < self.loss else None
        >>> stop = StopAt(2.0)
    """

    def on_train_begin(self, state: TrainerState) -> Control | None:
        """Before the first step of this process."""

    def on_train_end(self, state: TrainerState) -> Control | None:
        """After the last step and checkpoint."""

    def on_epoch_begin(self, state: TrainerState) -> Control | None:
        """Before the first step of an epoch."""

    def on_epoch_end(self, state: TrainerState) -> Control | None:
        """After the last step of an epoch."""

    def on_step_begin(self, state: TrainerState) -> Control | None:
        """Before a step."""

    def on_step_end(self, state: TrainerState, result: StepResult) -> Control | None:
        """After the weights are updated."""

    def on_log(self, state: TrainerState, record: Record) -> Control | None:
        """After the metrics of a step are recorded."""

    def on_evaluate(self, state: TrainerState, evaluation: Evaluation) -> Control | None:
        """After an evaluation on held-out data."""

    def on_save(self, state: TrainerState, checkpoint: Path) -> Control | None:
        """After a checkpoint is complete."""

    def on_resume(self, state: TrainerState, checkpoint: Path) -> Control | None:
        """After the run is restored from a checkpoint."""


class _OnLog(Callback):
    """A function that takes records."""

    def __init__(self, function: Callable[[Record], object]) -> None:
        self._function = function

    def on_log(self, state: TrainerState, record: Record) -> Control | None:
        return cast("Control | None", self._function(record))


EVENTS = tuple(name for name in vars(Callback) if name.startswith("on_"))

Counts = tuple[int, int, int, int, float | None]
"""A `TrainerState` without the config."""


class Hooks:
    """Passes the events of a run on to callbacks. The native module calls it on the first rank.

    Its methods return whether to stop after the current step.
    """

    def __init__(self, callbacks: Iterable[Callback | Callable[[Record], object]], progress: TrainingProgress) -> None:
        self._callbacks = [_callback(given) for given in callbacks]
        self._progress = progress
        self._config: dict[str, Any] = {}
        self.raised: BaseException | None = None
        """What a callback raised."""

    @property
    def wanted(self) -> Sequence[str]:
        """The methods that do something."""
        overridden = [name for name in EVENTS if any(_overrides(callback, name) for callback in self._callbacks)]
        return ["begin", *overridden, *({"on_log"} - set(overridden))]

    def begin(self, counts: Counts, config: str) -> bool:
        """The model, the data and the optimizer are ready."""
        self._config = json.loads(config)
        state = self._state(counts)
        self._progress.train(state.step, state.total_steps)
        return False

    def on_train_begin(self, counts: Counts) -> bool:
        """As `Callback.on_train_begin`. Nothing is lost if it raises."""
        return self._tell_before("on_train_begin", counts)

    def on_resume(self, counts: Counts, checkpoint: Path) -> bool:
        """As `Callback.on_resume`. Nothing is lost if it raises."""
        return self._tell_before("on_resume", counts, Path(checkpoint))

    def on_train_end(self, counts: Counts) -> bool:
        """As `Callback.on_train_end`."""
        return self._tell("on_train_end", counts)

    def on_epoch_begin(self, counts: Counts) -> bool:
        """As `Callback.on_epoch_begin`."""
        return self._tell("on_epoch_begin", counts)

    def on_epoch_end(self, counts: Counts) -> bool:
        """As `Callback.on_epoch_end`."""
        return self._tell("on_epoch_end", counts)

    def on_step_begin(self, counts: Counts) -> bool:
        """As `Callback.on_step_begin`."""
        return self._tell("on_step_begin", counts)

    def on_step_end(self, counts: Counts, result: tuple[float, float, int]) -> bool:
        """As `Callback.on_step_end`."""
        return self._tell("on_step_end", counts, StepResult(*result))

    def on_log(self, counts: Counts, record: str) -> bool:
        """As `Callback.on_log`."""
        read = flat(json.loads(record))
        self._progress.log(read, counts[4])
        return self._tell("on_log", counts, read)

    def on_evaluate(self, counts: Counts, evaluation: tuple[float | None, int, list[tuple[str, str]]]) -> bool:
        """As `Callback.on_evaluate`."""
        return self._tell("on_evaluate", counts, Evaluation(*evaluation))

    def on_save(self, counts: Counts, checkpoint: Path) -> bool:
        """As `Callback.on_save`."""
        return self._tell("on_save", counts, Path(checkpoint))

    def _state(self, counts: Counts) -> TrainerState:
        return TrainerState(*counts, self._config)

    def _tell_before(self, event: str, counts: Counts, *arguments: object) -> bool:
        stops = self._tell(event, counts, *arguments)
        if self.raised is not None:
            raise self.raised
        return stops

    def _tell(self, event: str, counts: Counts, *arguments: object) -> bool:
        """Whether a callback wants to stop. Nobody is called once one has failed."""
        state, stops = self._state(counts), False
        try:
            for callback in self._callbacks if self.raised is None else ():
                wanted = getattr(callback, event)(state, *arguments)
                stops = stops or wanted is STOP
        except BaseException as error:
            self.raised = error
        return stops or self.raised is not None


def flat(record: dict[str, Any]) -> Record:
    """A record of `metrics.jsonl` with all its scalars and texts by name."""
    own = {name: value for name, value in record.items() if name not in ("scalars", "texts")}
    return {**own, **record.get("scalars", {}), **record.get("texts", {})}


def _callback(given: object) -> Callback:
    if isinstance(given, Callback):
        return given
    if isinstance(given, type) or not callable(given):
        raise UserError(
            f"cannot use {given!r} as a callback: it is neither a `wl.Callback` nor a function",
            "pass an instance of a subclass of `wl.Callback`, or a function that takes a record",
        )
    return _OnLog(cast("Callable[[Record], object]", given))


def _overrides(callback: Callback, event: str) -> bool:
    # Also what was assigned to the instance.
    return getattr(getattr(callback, event), "__func__", None) is not getattr(Callback, event)
