"""`report_to`: metrics go to the packages that users have installed. The packages are small stand-ins."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import tracker_packages
import weightloom as wl
from test_train import config
from tracker_packages import Store

from weightloom import _trackers

NAMES = ["wandb", "mlflow", "trackio"]

STATES: dict[str, dict[str, Any]] = {
    "wandb": {"finished": 0, "stopped": 0, "failed": 1},
    "mlflow": {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"},
    "trackio": {"finished": None, "stopped": None, "failed": None},
}


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store.jsonl")


@pytest.fixture
def package(name: str, store: Store, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A package that is installed."""
    for variable in ("WANDB_PROJECT", "TRACKIO_PROJECT"):
        monkeypatch.delenv(variable, raising=False)
    made = tracker_packages.PACKAGES[name](store)
    monkeypatch.setitem(sys.modules, name, made)
    return made


def losses(store: Store) -> list[tuple[int, float]]:
    return [(line["step"], line["metrics"]["train/loss"]) for line in store.lines("metrics")]


def test_the_metrics_of_each_step_arrive_once_also_after_a_resume(
    name: str, package: Any, store: Store, tmp_path: Path
) -> None:
    settings = config(tmp_path / "run", max_steps=4, seed=3)
    wl.train(settings, report_to=name, callbacks=[lambda record: wl.STOP if record["step"] == 2 else None])
    run = wl.train(settings, report_to=[name])
    assert losses(store) == list(zip([1, 2, 3, 4], run.history["loss"], strict=True))
    [(number, metrics)] = {(line["run"], tuple(line["metrics"])) for line in store.lines("metrics")}
    assert {"train/learning_rate", "train/gradient_norm", "train/tokens_per_second"} <= set(metrics)
    first, second = store.lines("start")
    assert (first["run"], first["resumes"], second["run"], second["resumes"]) == (number, False, number, True)
    if name != "mlflow":
        assert (first["project"], first["name"].startswith("run")) == ("weightloom", True)
    configs = [line["config"] for line in store.lines("start") + store.lines("config") if line["config"]]
    assert configs[0]["train.seed"] in (3, "3") and configs[0]["model.name"] == "llama"
    assert [line["state"] for line in store.lines("end")] == [STATES[name]["stopped"], STATES[name]["finished"]]
    # Active runs, and those of contexts, belong to the thread that trains.
    assert {line["thread"] for line in store.lines("metrics")} == {threading.get_ident()}


def test_runs_of_one_program_are_kept_apart(name: str, package: Any, store: Store, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        wl.train(config(tmp_path / folder, max_steps=2), report_to=name, ranks=2)
    started = [line["run"] for line in store.lines("start")]
    assert len(set(started)) == 2
    assert [line["run"] for line in store.lines("metrics")] == [started[0]] * 2 + [started[1]] * 2


def test_an_active_run_is_used_and_left_open(name: str, package: Any, store: Store, tmp_path: Path) -> None:
    if name == "mlflow":
        number = package.start_run(run_name="mine").info.run_id
    else:
        run = package.init(project="mine", name="mine")
        number = run.id if name == "wandb" else run.name
    wl.train(config(tmp_path / "run", max_steps=2), report_to=name)
    assert len(store.lines("start")) == 1
    assert {line["run"] for line in store.lines("metrics")} == {number}
    assert store.lines("end") == []
    # Resumed within another run, it is described there too.
    if name == "mlflow":
        package.end_run()
        package.start_run(run_name="another")
        wl.train(config(tmp_path / "run", max_steps=4), report_to=name, force_resume=True)
        assert len({line["run"] for line in store.lines("config")}) == 2


def test_a_run_that_fails_is_reported_as_failed(name: str, package: Any, store: Store, tmp_path: Path) -> None:
    with pytest.raises(wl.CheckFailed):
        wl.train(config(tmp_path / "run", optimizer={"lr": 1e38, "max_grad_norm": 1e38}), report_to=name)
    assert [line["state"] for line in store.lines("end")] == [STATES[name]["failed"]]


def test_a_tracker_that_fails_is_a_warning_and_the_run_continues(
    name: str, package: Any, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ConnectionError("the tracker is down")

    monkeypatch.setattr(_trackers._OPEN[name], "log", fail)
    monkeypatch.setattr(_trackers._OPEN[name], "finish", fail)
    with pytest.warns(RuntimeWarning, match="ConnectionError: the tracker is down") as caught:
        run = wl.train(config(tmp_path / "run", max_steps=3), report_to=name)
    assert run.finished and len(run.records) == 3
    # Once, not for each step; and the end is reported too.
    assert [str(one.message).startswith("metrics are incomplete: ConnectionError") for one in caught] == [False, True]
    [warning] = run.warnings
    assert name in warning and "the tracker is down" in warning


def test_the_command_reports_too_and_its_results_are_all_that_is_on_stdout(
    name: str, store: Store, tmp_path: Path
) -> None:
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / f"{name}.py").write_text(
        "import sys, pathlib, tracker_packages\n"
        "print('a greeting, as of packages')\n"
        f"store = tracker_packages.Store(pathlib.Path({str(store.file)!r}))\n"
        f"sys.modules[__name__] = tracker_packages.PACKAGES[{name!r}](store)\n"
    )
    settings = config(tmp_path / "run", max_steps=2, logging={"report_to": ["jsonl", name]})
    (tmp_path / "run.yaml").write_text(json.dumps(settings))
    paths = [str(tmp_path / "packages"), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    command = [sys.executable, "-m", "weightloom", "train", "run.yaml", "--ranks", "2", "--json"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert losses(store) == [(result["step"], result["loss"]) for result in results if "learning_rate" in result]
    assert [line["state"] for line in store.lines("end")] == [STATES[name]["finished"]]
    assert "a greeting" in done.stderr


def test_names_and_texts_are_those_that_mlflow_accepts(store: Store) -> None:
    mlflow = tracker_packages.Mlflow(store)
    settings = {f"key{number}(µ)": "long " * 2000 for number in range(250)}
    run = _trackers._Mlflow(mlflow, "run", settings, None)
    run.log(3, {"eval/loss (old)": 1.0}, {"sample/0": "täxt"})
    run.log(4, {}, {})
    assert len(store.lines("config")) == 3
    [metrics] = store.lines("metrics")
    assert metrics["metrics"] == {"eval/loss _old_": 1.0}
    assert [(line["file"], line["text"]) for line in store.lines("text")] == [("sample/0/step_3.txt", "täxt")]


def test_a_tracker_that_is_not_installed_or_not_known_is_an_error(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    # A folder of runs is not the package.
    (tmp_path / name).mkdir()
    with pytest.raises(wl.UserError, match=f"the package `{name}` is not installed") as raised:
        wl.train(config(tmp_path / "run"), report_to=name)
    assert raised.value.hint == f"run `pip install {name}`"
    assert not (tmp_path / "run").exists()
    with pytest.raises(wl.UserError, match="cannot report to 'neptune': there is no such tracker") as raised:
        wl.train(config(tmp_path / "run"), report_to="neptune")
    assert "trackio" in str(raised.value.hint)


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    settings = config(tmp_path / "run", max_steps=4)
    wl.train(settings, report_to="tensorboard", callbacks=[lambda record: wl.STOP if record["step"] == 2 else None])
    run = wl.train(settings, report_to="tensorboard")
    events = EventAccumulator(str(tmp_path / "run/tensorboard"))
    events.Reload()
    found = events.Scalars("train/loss")
    assert [event.step for event in found] == [1, 2, 3, 4]
    # TensorBoard stores numbers as f32.
    assert [event.value for event in found] == pytest.approx(run.history["loss"], rel=1e-6)
