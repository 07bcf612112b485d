"""Experiment trackers: Weights & Biases, MLflow and Trackio, through the packages that are installed.

The native module opens them as metric sinks of a run, on its first rank, and reports a failure once. The settings are
those of the packages: their environment variables, or a run that is active.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from weightloom import _weightloom

NAMES = ("wandb", "mlflow", "trackio")
"""The packages."""

PROJECT = "weightloom"
"""The project of runs whose environment names none."""

RUNS = "trackers.json"
"""The file of a run folder with the runs of trackers, which a resumed run continues."""

Numbers = Mapping[str, float]
Texts = Mapping[str, str]


class Tracker(Protocol):
    """A run of one package."""

    run_id: str
    """What a resumed run continues with."""

    def log(self, step: int, numbers: Numbers, texts: Texts) -> None:
        """Logs the metrics of a step."""

    def finish(self, state: str) -> None:
        """Ends the run: `"finished"`, `"stopped"` or `"failed"`."""


def problem(name: str) -> tuple[str, str] | None:
    """Why a tracker cannot be used, and what would help. The native module calls it."""
    # A folder such as `wandb`, which the package writes, can be imported too; it has no file.
    found = None if name in sys.modules else importlib.util.find_spec(name)
    if name in sys.modules or (found is not None and found.origin is not None):
        return None
    return f"the package `{name}` is not installed", f"run `pip install {name}`"


def open_run(name: str, folder: str | os.PathLike[str], after: int) -> TrackedRun:
    """Opens a tracker for a run in a folder that continues after a step. The native module calls it."""
    place = Path(folder)
    known = _read(place / RUNS) if after > 0 else {}
    package = importlib.import_module(name)
    tracker = _OPEN[name](package, place.name, _flat(_config(place)), known.get(name))
    _write(place / RUNS, _read(place / RUNS) | {name: tracker.run_id})
    return TrackedRun(tracker)


class TrackedRun:
    """A run with a tracker. The native module calls it."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._steps = 0
        self._state = "failed"

    def record(self, step: int, numbers: Numbers, texts: Texts) -> None:
        """The metrics of a step."""
        self._tracker.log(step, numbers, texts)

    def event(self, text: str) -> None:
        """An event, as in `metrics.jsonl`."""
        event = json.loads(text)
        if event["event"] == "start":
            self._steps = event["steps"]
        elif event["event"] == "end":
            complete = event["step"] >= self._steps or event.get("early", False)
            self._state = "finished" if complete else "stopped"

    def close(self) -> None:
        """The process has ended the run, well or not."""
        try:
            self._tracker.finish(self._state)
        except Exception as error:
            import warnings

            warnings.warn(f"metrics are incomplete: {type(error).__name__}: {error}", RuntimeWarning, stacklevel=2)


class _Wandb:
    """A run of Weights & Biases."""

    def __init__(self, wandb: Any, name: str, config: dict[str, Any], run_id: str | None) -> None:
        self._is_own = wandb.run is None
        if self._is_own:
            project = os.environ.get("WANDB_PROJECT", PROJECT)
            resume = "allow" if run_id is not None else None
            self._run = wandb.init(project=project, name=name, config=config, id=run_id, resume=resume)
        else:
            self._run = wandb.run
            self._run.config.update(config, allow_val_change=True)
        self.run_id = str(self._run.id)

    def log(self, step: int, numbers: Numbers, texts: Texts) -> None:
        # Steps that a resumed run repeats have the same values; the package keeps the first ones.
        self._run.log({**numbers, **texts}, step=step)

    def finish(self, state: str) -> None:
        if self._is_own:
            self._run.finish(exit_code=0 if state != "failed" else 1)


class _Mlflow:
    """A run of MLflow."""

    _STATES = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}

    # The server's limits.
    _PARAMS = 100
    _LONGEST = 500

    def __init__(self, mlflow: Any, name: str, config: dict[str, Any], run_id: str | None) -> None:
        self._mlflow = mlflow
        active = mlflow.active_run()
        self._is_own = active is None
        if active is None:
            active = mlflow.start_run(run_id=run_id, run_name=None if run_id is not None else name)
        self.run_id = str(active.info.run_id)
        # Of a run that is resumed they are known, and cannot change.
        params = [] if self.run_id == run_id else list(config.items())
        for start in range(0, len(params), self._PARAMS):
            batch = {_metric(key): str(value)[: self._LONGEST] for key, value in params[start : start + self._PARAMS]}
            mlflow.log_params(batch, run_id=self.run_id)

    def log(self, step: int, numbers: Numbers, texts: Texts) -> None:
        metrics = {_metric(name): value for name, value in numbers.items()}
        if metrics:
            self._mlflow.log_metrics(metrics, step=step, run_id=self.run_id)
        for name, text in texts.items():
            self._mlflow.log_text(text, f"{_metric(name)}/step_{step}.txt", run_id=self.run_id)

    def finish(self, state: str) -> None:
        active = self._mlflow.active_run()
        if not self._is_own:
            return
        if active is not None and active.info.run_id == self.run_id:
            self._mlflow.end_run(self._STATES[state])
        else:
            # The command: the package knows active runs of threads, and forgets those of its threads.
            self._mlflow.MlflowClient().set_terminated(self.run_id, self._STATES[state])


class _Trackio:
    """A run of Trackio."""

    def __init__(self, trackio: Any, name: str, config: dict[str, Any], run_id: str | None) -> None:
        self._trackio = trackio
        active = trackio.context_vars.current_run.get()
        self._is_own = active is None
        if active is None:
            import secrets

            project = os.environ.get("TRACKIO_PROJECT", PROJECT)
            # A run is continued by its name, so no other may have it.
            name = run_id if run_id is not None else f"{name}-{secrets.token_hex(3)}"
            active = trackio.init(project=project, name=name, config=config, resume="allow" if run_id else "never")
        self._run = active
        self.run_id = str(active.name)

    def log(self, step: int, numbers: Numbers, texts: Texts) -> None:
        self._run.log({**numbers, **texts}, step=step)

    def finish(self, state: str) -> None:
        if not self._is_own:
            return
        if self._trackio.context_vars.current_run.get() is self._run:
            # Otherwise the next run of this thread would be logged to this one.
            self._trackio.finish()
        else:
            self._run.finish()


Opener = Callable[[Any, str, dict[str, Any], str | None], Tracker]
"""Opens a tracker: the package, the name of the run, its config, and the run to continue."""

_OPEN: dict[str, Opener] = {"wandb": _Wandb, "mlflow": _Mlflow, "trackio": _Trackio}


def _metric(name: str) -> str:
    """A name that MLflow accepts."""
    return re.sub(r"[^\w\-. :/]", "_", name)


def _config(folder: Path) -> dict[str, Any]:
    """The resolved config that a run has written."""
    (text,) = _weightloom.call(["train", "--dump-config", "--", str(folder / "config.yaml")])[1]
    config: dict[str, Any] = json.loads(text)
    return config


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The keys of a config that have values, with dots.

    Example:
        >>> from weightloom._trackers import _flat
        >>> _flat({"train": {"seed": 3, "epochs": None, "eval": {}}})
        {'train.seed': 3}
    """
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{key}.")
        elif value is not None:
            found[f"{prefix}{key}"] = value
    return found


def _read(file: Path) -> dict[str, str]:
    try:
        found: dict[str, str] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        return {}
    return found


def _write(file: Path, runs: Mapping[str, str]) -> None:
    # Whole or not at all.
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(dict(runs), indent=1) + "\n", encoding="utf-8")
    os.replace(partial, file)
