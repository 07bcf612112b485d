"""Stand-ins for the packages of trackers, with the parts of their interfaces that we use.

Names of parameters, where the active run is kept, and what is refused are those of wandb 0.31, MLflow 3.17 and
Trackio 0.43. Runs are appended to a file of JSON lines, so that those of another process can be read too.
"""

from __future__ import annotations

import contextvars
import json
import re
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any


class Store:
    """The file that all packages write to."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def write(self, what: str, run: str, **values: Any) -> None:
        line = {"what": what, "run": run, "thread": threading.get_ident(), **values}
        with open(self.file, "a") as lines:
            lines.write(json.dumps(line) + "\n")

    def lines(self, what: str) -> list[dict[str, Any]]:
        """What was written, in order."""
        if not self.file.exists():
            return []
        lines = map(json.loads, self.file.read_text().splitlines())
        return [line for line in lines if line["what"] == what]

    def new_run(self) -> str:
        return f"id{len(self.lines('start'))}"


class Wandb:
    """`wandb`: one run of the process is active."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.run: Any = None

    def init(
        self,
        *,
        project: str | None = None,
        name: str | None = None,
        config: dict[str, Any] | None = None,
        id: str | None = None,
        resume: str | None = None,
    ) -> Any:
        assert resume in (None, "allow") and (resume is None) == (id is None)
        number = id or self.store.new_run()
        self.store.write("start", number, project=project, name=name, config=config, resumes=id is not None)
        self.run = WandbRun(self, number)
        return self.run


class WandbRun:
    def __init__(self, wandb: Wandb, id: str) -> None:
        self.wandb, self.id, self.step = wandb, id, 0
        self.config = SimpleNamespace(update=self.update)

    def update(self, d: dict[str, Any], allow_val_change: bool | None = None) -> None:
        self.wandb.store.write("config", self.id, config=d)

    def log(self, data: dict[str, Any], step: int | None = None) -> None:
        # What is logged for an earlier step is dropped, with a warning.
        if step is not None and step >= self.step:
            self.step = step
            self.wandb.store.write("metrics", self.id, step=step, metrics=data)

    def finish(self, exit_code: int | None = None) -> None:
        self.wandb.store.write("end", self.id, state=exit_code)
        self.wandb.run = None


class Mlflow:
    """`mlflow`: each thread has active runs."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.active = threading.local()
        self.params: dict[str, dict[str, str]] = {}

    def active_run(self) -> Any:
        return getattr(self.active, "run", None)

    def start_run(self, run_id: str | None = None, run_name: str | None = None) -> Any:
        if self.active_run() is not None:
            raise Exception(f"Run with UUID {self.active_run().info.run_id} is already active.")
        number = run_id or self.store.new_run()
        self.store.write("start", number, project=None, name=run_name, config=None, resumes=run_id is not None)
        self.active.run = SimpleNamespace(info=SimpleNamespace(run_id=number))
        return self.active.run

    def log_params(self, params: dict[str, Any], *, run_id: str | None = None) -> None:
        assert run_id is not None and len(params) <= 100
        known = self.params.setdefault(run_id, {})
        for key, value in params.items():
            check_name(key)
            assert len(str(value)) <= 6000
            if known.setdefault(key, str(value)) != str(value):
                raise Exception(f"Changing param values is not allowed. Param with key='{key}' was already logged")
        self.store.write("config", run_id, config=params)

    def log_metrics(self, metrics: dict[str, float], step: int | None = None, *, run_id: str | None = None) -> None:
        assert run_id is not None
        for name, value in metrics.items():
            check_name(name)
            float(value)
        self.store.write("metrics", run_id, step=step, metrics=metrics)

    def log_text(self, text: str, artifact_file: str, run_id: str | None = None) -> None:
        assert run_id is not None
        check_name(artifact_file)
        self.store.write("text", run_id, file=artifact_file, text=text)

    def end_run(self, status: str = "FINISHED") -> None:
        self.store.write("end", self.active_run().info.run_id, state=status)
        self.active.run = None

    def MlflowClient(self) -> Any:
        def set_terminated(run_id: str, status: str | None = None) -> None:
            self.store.write("end", run_id, state=status)

        return SimpleNamespace(set_terminated=set_terminated)


def check_name(name: str) -> None:
    """MLflow accepts other characters neither in metrics nor in parameters."""
    if not re.fullmatch(r"[\w\-. :/]+", name):
        raise Exception(f"Invalid metric name: '{name}'")


class Trackio:
    """`trackio`: each context has an active run, which is continued by its name."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.names: set[str] = {line["run"] for line in store.lines("start")}
        current: contextvars.ContextVar[Any] = contextvars.ContextVar("current_run", default=None)
        self.context_vars = SimpleNamespace(current_run=current)

    def init(
        self, project: str, name: str | None = None, config: dict[str, Any] | None = None, resume: str = "never"
    ) -> Any:
        number = name or self.store.new_run()
        is_known = number in self.names
        assert resume in ("never", "allow", "must") and (resume == "must") <= is_known
        # A run that must not be resumed is one of a new name.
        assert not (resume == "never" and is_known), "two runs would have one name"
        self.names.add(number)
        self.store.write("start", number, project=project, name=name, config=config, resumes=is_known)
        run = TrackioRun(self, number)
        self.context_vars.current_run.set(run)
        return run

    def finish(self) -> None:
        run = self.context_vars.current_run.get()
        if run is None:
            raise RuntimeError("Call trackio.init() before trackio.finish().")
        run.finish()
        self.context_vars.current_run.set(None)


class TrackioRun:
    def __init__(self, trackio: Trackio, name: str) -> None:
        self.trackio, self.name = trackio, name

    def log(self, metrics: dict[str, Any], step: int | None = None) -> None:
        self.trackio.store.write("metrics", self.name, step=step, metrics=metrics)

    def finish(self) -> None:
        # It stays the active one, as in the package.
        self.trackio.store.write("end", self.name, state=None)


PACKAGES: dict[str, Any] = {"wandb": Wandb, "mlflow": Mlflow, "trackio": Trackio}
