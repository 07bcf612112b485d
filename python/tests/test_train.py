"""`wl.train`, `wl.Run` and `wl.dry_run`: the command's numbers, callbacks, signals, and resumes without a changed bit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy
import pytest
import weightloom as wl
from weightloom._callback import EVENTS
from weightloom._training_progress import TrainingProgress

MODEL = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
}


def config(folder: Path, **train: Any) -> dict[str, Any]:
    """A run that takes milliseconds."""
    settings = {"max_steps": 6, "global_batch_size": 4, "checkpoint": {"output_dir": str(folder)}, **train}
    return {
        "model": {"name": "llama", "config_overrides": MODEL},
        "data": {"type": "dummy", "max_seq_len": 16},
        "train": settings,
    }


def endless(folder: Path) -> dict[str, Any]:
    return config(folder, max_steps=10_000_000)


class Story(wl.Callback):
    """Writes down every event, with the step and what comes with it."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int, Any]] = []
        self.states: list[wl.TrainerState] = []

    def note(self, event: str, state: wl.TrainerState, *what: Any) -> None:
        self.events.append((event, state.step, *what))
        self.states.append(state)


for _event in EVENTS:
    setattr(Story, _event, lambda self, state, *what, _event=_event: self.note(_event, state, *what))


def same_tensors(first: object, second: object) -> bool:
    """Whether weights and optimizer states are equal. The configs beside them name different folders."""
    found = wl.diff(str(first), str(second))
    return len(found.identical) > 30 and not (found.changed or found.only_first or found.only_second)


def losses(run: wl.Run) -> list[float]:
    return run.history["loss"]


def test_callbacks_are_called_in_order_with_the_values_of_the_run(tmp_path: Path) -> None:
    story = Story()
    settings = config(tmp_path / "run", max_steps=2, checkpoint={"output_dir": str(tmp_path / "run")})
    run = wl.train(settings, callbacks=[story])
    names = [(event[0], event[1]) for event in story.events]
    step = ["on_step_begin", "on_step_end", "on_log"]
    assert names == [
        ("on_train_begin", 0),
        ("on_epoch_begin", 0),
        *zip(step, (0, 1, 1), strict=True),
        *zip(step, (1, 2, 2), strict=True),
        ("on_save", 2),
        ("on_train_end", 2),
    ]
    ends = [event[2] for event in story.events if event[0] == "on_step_end"]
    assert [end.loss for end in ends] == losses(run)
    assert [end.gradient_norm for end in ends] == run.history["gradient_norm"]
    assert {end.targets for end in ends} == {4 * 16}
    assert [event[2] for event in story.events if event[0] == "on_log"] == run.records
    assert [event[2] for event in story.events if event[0] == "on_save"] == [run.checkpoint]
    assert {(state.total_steps, state.ranks) for state in story.states} == {(2, 1)}
    assert story.states[0].config["train"]["optimizer"]["kind"] == "adamw"


def test_a_run_has_the_losses_of_the_command(tmp_path: Path) -> None:
    settings = config(tmp_path / "module", eval={"eval_steps": 2}, precision="bf16")
    run = wl.train(settings, ranks=2)
    file = tmp_path / "run.yaml"
    file.write_text(json.dumps(settings))
    output = f"train.checkpoint.output_dir={tmp_path / 'command'}"
    command = [sys.executable, "-m", "weightloom", "train", str(file), "--ranks", "2", "--json", output]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    results = [json.loads(line) for line in done.stdout.splitlines()]
    of_command = [result for result in results if "learning_rate" in result]
    exact = ("step", "loss", "learning_rate", "gradient_norm", "tokens")
    assert [[record[name] for name in exact] for record in run.records] == [
        [record[name] for name in exact] for record in of_command
    ]
    assert same_tensors(run.checkpoint, results[-1]["checkpoint"])
    # A file is as good as a dict.
    again = wl.train(file, {"train.checkpoint.output_dir": str(tmp_path / "file")}, ranks=2)
    assert losses(again) == losses(run)


def test_a_stopped_run_resumes_without_a_changed_bit(tmp_path: Path) -> None:
    whole = wl.train(config(tmp_path / "whole"))
    settings = config(tmp_path / "parts")
    stopped = wl.train(settings, callbacks=[lambda record: wl.STOP if record["step"] == 2 else None])
    assert (stopped.step, stopped.finished, stopped.total_steps) == (2, False, 6)
    assert stopped.checkpoint == tmp_path / "parts/checkpoints/step_2"
    story = Story()
    resumed = wl.train(settings, callbacks=[story])
    assert story.events[0] == ("on_resume", 2, stopped.checkpoint)
    assert (resumed.step, resumed.finished, resumed.resumed_after) == (6, True, [2])
    assert losses(resumed) == losses(whole)
    assert same_tensors(whole.checkpoint, resumed.checkpoint)
    # There is nothing left to do, and the run is what it was.
    again = wl.train(settings)
    assert (again.step, again.finished, again.records) == (6, True, resumed.records)


def test_callbacks_run_in_the_thread_that_trains(tmp_path: Path) -> None:
    local = threading.local()
    local.mark = "mine"
    seen: list[tuple[int, str | None]] = []
    wl.train(
        config(tmp_path / "run"),
        callbacks=[lambda record: seen.append((threading.get_ident(), getattr(local, "mark", None)))],
        ranks=2,
    )
    assert seen == [(threading.get_ident(), "mine")] * 6


def test_ctrl_c_inside_of_a_callback_saves_and_raises(tmp_path: Path) -> None:
    saved: list[Path] = []

    class Interrupt(wl.Callback):
        def on_step_end(self, state: wl.TrainerState, result: wl.StepResult) -> None:
            if state.step == 2:
                signal.raise_signal(signal.SIGINT)

        def on_save(self, state: wl.TrainerState, checkpoint: Path) -> None:
            saved.append(checkpoint)

    with pytest.raises(KeyboardInterrupt):
        wl.train(config(tmp_path / "run"), callbacks=[Interrupt()])
    kept = wl.Run.open(tmp_path / "run")
    assert (kept.step, kept.checkpoint) == (2, tmp_path / "run/checkpoints/step_2")
    # As after any exception in a callback, nobody is called.
    assert saved == []


def test_a_callback_stops_thread_ranks_once_and_together(tmp_path: Path) -> None:
    calls: list[int] = []

    class Stop(wl.Callback):
        def on_step_end(self, state: wl.TrainerState, result: wl.StepResult) -> wl.Control | None:
            calls.append(state.ranks)
            return wl.STOP if state.step == 3 else None

    run = wl.train(config(tmp_path / "run"), callbacks=[Stop()], ranks=4)
    assert (run.step, run.finished) == (3, False)
    # Only the first rank calls it.
    assert calls == [4, 4, 4]


class Burnt(Exception):
    pass


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_exception_in_a_callback_ends_the_run_with_a_checkpoint_and_is_raised(tmp_path: Path, ranks: int) -> None:
    error = Burnt("at the second step")
    later: list[int] = []

    def burn(record: dict[str, Any]) -> None:
        if record["step"] == 2:
            raise error

    def note(record: dict[str, Any]) -> None:
        later.append(record["step"])

    settings = config(tmp_path / "run")
    with pytest.raises(Burnt) as raised:
        wl.train(settings, callbacks=[burn, note], ranks=ranks)
    assert raised.value is error
    assert [frame.name for frame in raised.traceback][-1] == "burn"
    # Nobody is called after it.
    assert later == [1]
    kept = wl.Run.open(tmp_path / "run")
    assert (kept.step, kept.finished) == (2, False)
    assert kept.checkpoint == tmp_path / "run/checkpoints/step_2"
    assert wl.train(settings, ranks=ranks).finished


def test_an_exception_before_the_first_step_trains_nothing(tmp_path: Path) -> None:
    class Refuse(wl.Callback):
        def on_train_begin(self, state: wl.TrainerState) -> None:
            raise Burnt

    with pytest.raises(Burnt):
        wl.train(config(tmp_path / "run"), callbacks=[Refuse()], ranks=2)
    kept = wl.Run.open(tmp_path / "run")
    assert (kept.step, kept.checkpoint, kept.records, kept.loss) == (0, None, [], None)


def test_what_is_no_callback_is_rejected_before_the_run(tmp_path: Path) -> None:
    for wrong in (Story, 3, "print"):
        with pytest.raises(wl.UserError, match="as a callback"):
            wl.train(config(tmp_path / "run"), callbacks=[wrong])  # type: ignore[list-item]
    assert not (tmp_path / "run").exists()


def test_errors_of_a_config_name_its_keys_and_no_file(tmp_path: Path) -> None:
    settings = config(tmp_path / "run", optimizer={"lrr": 1, "lr": "fast"})
    with pytest.raises(wl.UserError) as raised:
        wl.train(settings)
    assert str(raised.value) == (
        "2 errors in the config\n"
        "  the config: train.optimizer.lrr: unknown key\n"
        "    hint: did you mean `lr`?\n"
        "  the config: train.optimizer.lr: expected a number, found the string `fast`"
    )
    with pytest.raises(wl.UserError, match="override `train.sed=1`: train.sed: unknown key"):
        wl.train(config(tmp_path / "run"), {"train": {"sed": 1}})
    with pytest.raises(wl.UserError, match="it has a set"):
        wl.train(config(tmp_path / "run", max_steps={3}))
    with pytest.raises(wl.UserError, match=r"it has a object at `train\.seed`"):
        wl.train(config(tmp_path / "run"), {"train.seed": object()})
    with pytest.raises(wl.UserError, match="a dict"):
        wl.train(3)  # type: ignore[arg-type]
    (tmp_path / "faulty.yaml").write_text("model: 3\n")
    with pytest.raises(wl.UserError, match=r"faulty\.yaml:1:8: model: expected a map"):
        wl.train(tmp_path / "faulty.yaml")


def test_a_config_may_hold_paths_tuples_and_numbers_of_numpy(tmp_path: Path) -> None:
    settings = config(tmp_path, max_steps=numpy.int64(2), checkpoint={"output_dir": tmp_path / "ünï: #1"})
    settings["train"]["logging"] = {"report_to": ("jsonl",)}
    run = wl.train(settings, {"train.optimizer.lr": numpy.float64(1e-5), "train.seed": 7})
    assert run.output_dir == tmp_path / "ünï: #1"
    assert run.history["learning_rate"][0] == 1e-5
    assert not (run.output_dir / "tensorboard").exists()


def test_two_runs_in_one_folder_are_an_error(tmp_path: Path) -> None:
    errors: list[BaseException] = []
    settings = endless(tmp_path / "run")

    def intrude(record: dict[str, Any]) -> wl.Control | None:
        if record["step"] == 1:
            try:
                wl.train(settings)
            except wl.WeightloomError as error:
                errors.append(error)
        return wl.STOP

    wl.train(settings, callbacks=[intrude])
    (error,) = errors
    assert isinstance(error, wl.UserError)
    assert error.message == f"another run is writing to `{tmp_path / 'run'}`"


def test_python_threads_run_while_it_trains(tmp_path: Path) -> None:
    turns, done = 0, threading.Event()
    # Wide enough that a step takes longer than a switch between threads.
    wide = {"train.max_steps": 3, "model.config_overrides": {**MODEL, "hidden_size": 512, "intermediate_size": 2048}}

    def turn() -> None:
        nonlocal turns
        while not done.is_set():
            turns += 1
            time.sleep(0.001)

    thread = threading.Thread(target=turn)
    thread.start()
    before, begin = turns, time.monotonic()
    wl.train(config(tmp_path / "run"), {**wide, "train.global_batch_size": 64})
    seconds, made = time.monotonic() - begin, turns - before
    done.set()
    thread.join()
    assert made > 20 * seconds, (made, seconds)


def program(folder: Path, body: str) -> subprocess.Popen[str]:
    """Starts a program that trains without end, and waits until it has done a step."""
    source = f"import weightloom as wl\nconfig = {endless(folder)!r}\n{body}"
    started = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert started.stdout is not None
    assert started.stdout.readline() == "training\n"
    return started


TRAIN = "wl.train(config, callbacks=[lambda record: print('training', flush=True) if record['step'] == 1 else None])"


def test_ctrl_c_saves_and_raises(tmp_path: Path) -> None:
    body = f"try:\n    {TRAIN}\nexcept KeyboardInterrupt:\n    print(wl.Run.open({str(tmp_path / 'run')!r}).checkpoint)"
    child = program(tmp_path / "run", body)
    child.send_signal(signal.SIGINT)
    out, errors = child.communicate(timeout=60)
    assert (child.returncode, errors) == (0, "")
    run = wl.Run.open(tmp_path / "run")
    assert run.checkpoint is not None and str(run.checkpoint) == out.strip()
    assert run.checkpoint.name == f"step_{run.step}" and not run.finished
    # What was saved is whole: the run resumes from it.
    resumed = wl.train(endless(tmp_path / "run"), {"train.max_steps": run.step + 1}, force_resume=True)
    assert resumed.finished and run.step in resumed.resumed_after


def test_a_signal_that_ends_the_program_saves_first(tmp_path: Path) -> None:
    child = program(tmp_path / "run", f"{TRAIN}\nprint('not reached')")
    child.send_signal(signal.SIGTERM)
    out, errors = child.communicate(timeout=60)
    assert (child.returncode, out, errors) == (-signal.SIGTERM, "", "")
    run = wl.Run.open(tmp_path / "run")
    assert run.checkpoint is not None and run.checkpoint.name == f"step_{run.step}"


def test_a_signal_that_the_program_handles_is_left_to_it(tmp_path: Path) -> None:
    heard: list[int] = []
    previous = signal.signal(signal.SIGUSR1, lambda number, _: heard.append(number))
    try:
        record = [lambda record: os.kill(os.getpid(), signal.SIGUSR1) if record["step"] == 1 else None]
        assert wl.train(config(tmp_path / "run"), callbacks=record).finished
        deadline = time.monotonic() + 10
        while not heard and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert heard == [signal.SIGUSR1]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_it_trains_in_a_thread_of_the_program(tmp_path: Path) -> None:
    runs: list[wl.Run] = []
    threads = [
        threading.Thread(target=lambda name=name: runs.append(wl.train(config(tmp_path / name)))) for name in "ab"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(runs) == 2 and losses(runs[0]) == losses(runs[1])


TORCHRUN = """
import json, os, sys
import torch.distributed as dist
import weightloom as wl

config, folder = json.loads(sys.argv[1]), sys.argv[2]
try:
    wl.train(config)
except wl.UserError as error:
    assert "torch.distributed is not initialized" in str(error), error
dist.init_process_group("gloo")
try:
    wl.train(config, ranks=3)
except wl.UserError as error:
    assert "cannot train on 3 ranks: the process group has 2" in str(error), error
calls = []
class Stop(wl.Callback):
    def on_step_end(self, state, result):
        calls.append(state.ranks)
        return wl.STOP if state.step == 4 else None
stopped = wl.train(config, callbacks=[Stop()])
run = wl.train(config)
with open(f"{folder}/{dist.get_rank()}.json", "w") as file:
    json.dump([stopped.step, calls, run.finished, str(run.checkpoint), run.history["loss"]], file)
dist.destroy_process_group()
"""


def test_processes_of_torchrun_are_ranks(tmp_path: Path) -> None:
    settings = config(tmp_path / "processes")
    (tmp_path / "program.py").write_text(TORCHRUN)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port=0", "--standalone"]
    arguments = [str(tmp_path / "program.py"), json.dumps(settings), str(tmp_path)]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    threads = wl.train(config(tmp_path / "threads"), ranks=2)
    for rank in range(2):
        step, calls, finished, checkpoint, found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert (step, calls, finished) == (4, [2] * 4 if rank == 0 else [], True)
        # Not a bit depends on what moves the bytes, or on a resume.
        assert found == losses(threads)
        assert same_tensors(checkpoint, threads.checkpoint)


def test_a_run_folder_is_read_while_it_trains(tmp_path: Path) -> None:
    seen: list[wl.Run] = []

    def look(record: dict[str, Any]) -> None:
        if record["step"] == 2:
            # As if the next line were being written.
            with open(tmp_path / "copy" / "metrics.jsonl", "w") as copy:
                copy.write((tmp_path / "run" / "metrics.jsonl").read_text() + '{"step": 3, "lo')
            seen.append(wl.Run.open(tmp_path / "copy"))

    (tmp_path / "copy").mkdir()
    wl.train(config(tmp_path / "run"), callbacks=[look])
    (run,) = seen
    assert (run.step, run.total_steps, run.finished, run.checkpoint, len(run.records)) == (2, 6, False, None, 2)
    (tmp_path / "copy" / "metrics.jsonl").write_text('{"step": 1}\n{"step"\n{"step": 2}\n')
    with pytest.raises(wl.UserError, match="a line of metrics.jsonl is not JSON"):
        wl.Run.open(tmp_path / "copy")


def test_evaluations_are_columns_beside_the_losses(quickstart: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(quickstart.parent)
    evaluations: list[wl.Evaluation] = []

    class Note(wl.Callback):
        def on_evaluate(self, state: wl.TrainerState, evaluation: wl.Evaluation) -> None:
            evaluations.append(evaluation)

    folder = tmp_path / "run"
    evaluated = {"eval_steps": 1, "max_rows": 2, "samples": {"prompts": ["A rank"], "max_new_tokens": 2}}
    settings = {"max_steps": 2, "eval": evaluated, "logging": {"logging_steps": 1}, "accelerator": {"tp": 1}}
    changes = {"data.eval_paths": [quickstart / "primer.md"], "train": settings}
    file = quickstart / "pretrain.yaml"
    run = wl.train(file, {**changes, "train.checkpoint.output_dir": str(folder)}, callbacks=[Note()])
    assert [record["step"] for record in run.records] == [1, 2]
    assert run.history["eval/loss"] == [evaluation.loss for evaluation in evaluations]
    assert run.eval_loss == evaluations[-1].loss
    assert [evaluation.samples[0][0] for evaluation in evaluations] == ["A rank"] * 2
    assert run.records[-1]["sample/0"] == "".join(evaluations[-1].samples[0])
    # Without the file, the records are those of this process.
    there = {"train.checkpoint.output_dir": str(tmp_path / "bare"), "train.logging.report_to": []}
    bare = wl.train(file, {**changes, **there})
    assert not (tmp_path / "bare/metrics.jsonl").exists()
    untimed = ("step", "loss", "eval/loss", "eval/perplexity", "sample/0", "gradient_norm")
    assert [[bare.history[name][at] for name in untimed] for at in range(2)] == [
        [run.history[name][at] for name in untimed] for at in range(2)
    ]


def test_a_loss_that_is_no_number_is_a_failed_check(tmp_path: Path) -> None:
    with pytest.raises(wl.CheckFailed, match="step 1 has loss|step 2 has loss"):
        wl.train(config(tmp_path / "run", optimizer={"lr": 1e38, "max_grad_norm": 1e38}))


class Screen:
    """A display that keeps what it was shown."""

    def __init__(self) -> None:
        self.shown: list[tuple[str, float | None, str]] = []

    def show(self, bar: str, fraction: float | None, note: str) -> None:
        self.shown.append((bar, fraction, note))

    def close(self, bar: str) -> None:
        self.shown.append((bar, 1.0, "closed"))


def test_the_bar_shows_steps_loss_and_time_left(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setattr("weightloom._progress._DELAY", 0)
    monkeypatch.setattr("weightloom._progress._INTERVAL", 0)
    screen = Screen()
    progress = TrainingProgress(screen)
    progress.begin("reading", 2048)
    progress.advance(1024)
    assert screen.shown[-1][0].startswith("reading: 1.0 KiB of 2.0 KiB")
    progress.train(10, 4000)
    progress.log({"step": 1000, "loss": 2.5, "tokens_per_second": 12345.0}, 185.0)
    assert screen.shown[-1] == ("step 1,000 of 4,000 · loss 2.5000 · 12.3k tok/s · 3m05s left", 0.25, "")
    # An evaluation reads; the next step is a step again.
    progress.begin("reading", 10)
    progress.log({"step": 1001, "loss": 2.25}, None)
    assert screen.shown[-1][0] == "step 1,001 of 4,000 · loss 2.2500"

    shown = Screen()
    monkeypatch.setattr("weightloom._train.new_display", lambda: shown)
    wl.train(config(tmp_path / "run"))
    assert any(bar.startswith("step 6 of 6 · loss ") and fraction == 1.0 for bar, fraction, _ in shown.shown)
    assert any(note == f"saved {tmp_path / 'run/checkpoints/step_6'}" for _, _, note in shown.shown)
    assert shown.shown[-1][2] == "closed"


def made(records: list[dict[str, Any]], **values: Any) -> wl.Run:
    given = {"checkpoint": None, "step": len(records), "finished": True, **values}
    return wl.Run("runs/<b>bold</b>", records=records, **given)


def test_a_run_in_a_notebook_is_escaped_and_draws_its_losses() -> None:
    records = [{"step": step, "loss": 4 / step, "eval/loss": float("nan")} for step in range(1, 1001)]
    page = made(records, warnings=["<script>"], checkpoint=Path("a&b"))._repr_html_()
    assert "<b>" not in page and "<script>" not in page
    for part in ("runs/&lt;b&gt;bold", "warning: &lt;script&gt;", "a&amp;b", "1,000", "<polyline"):
        assert part in page, part
    # A thousand points are not all drawn, but the last one is.
    points = page.split('points="')[1].split('"')[0].split()
    assert len(points) <= 321 and points[0] == "3.0,3.0" and points[-1] == "317.0,45.0"
    empty = made([], finished=False)
    assert "<polyline" not in empty._repr_html_()
    assert repr(empty) == "<Run 'runs/<b>bold</b>': not finished at step 0 of 0>"


def test_a_plot_has_losses_rates_and_resume_points(tmp_path: Path) -> None:
    from matplotlib import pyplot
    from matplotlib.image import imread

    records = [{"step": step, "loss": 4 / step, "learning_rate": 1e-3, "tokens_per_second": 9e3} for step in range(1, 9)]
    records[3]["eval/loss"] = records[7]["eval/loss"] = 1.0
    starts = [{"steps": 8, "first_step": 0}, {"steps": 8, "first_step": 4}]
    ax = made(records, starts=starts).plot()
    panels = ax.figure.axes
    assert [panel.get_ylabel() for panel in panels] == ["loss", "learning rate", "tokens/s"]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["loss", "eval loss", "resumed"]
    assert list(ax.lines[0].get_ydata()) == [record["loss"] for record in records]
    assert list(ax.lines[1].get_xdata()) == [4, 8]
    assert [line.get_xdata() for panel in panels for line in panel.lines if line.get_linestyle() == ":"] == [[4, 4]] * 3
    ax.figure.savefig(tmp_path / "plot.png")
    assert imread(tmp_path / "plot.png").shape[2] == 4

    # What was not recorded has no panel, and one curve needs no legend.
    alone = made([{"step": step, "loss": 1.0 * step} for step in range(1, 201)]).plot()
    assert len(alone.figure.axes) == 1
    assert alone.get_legend() is None
    # Averages of a straight line are the line, but for the last ones, which have no later values.
    assert list(alone.lines[1].get_ydata())[:190] == pytest.approx(list(alone.lines[0].get_ydata())[:190])
    # Runs side by side.
    _, both = pyplot.subplots()
    for name in ("first", "second"):
        assert made(records).plot(both, label=name) is both
    assert [text.get_text() for text in both.get_legend().get_texts()] == [
        f"{name}: {what}" for name in ("first", "second") for what in ("loss", "eval loss")
    ]
    pyplot.close("all")
    with pytest.raises(wl.UserError, match="has recorded no losses"):
        made([{"step": 1}]).plot()


def test_a_plot_without_matplotlib_says_what_to_install(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(wl.UserError) as raised:
        made([{"step": 1, "loss": 1.0}]).plot()
    assert raised.value.hint == "run `pip install matplotlib`"


LARGE = {
    "model": {"name": "llama", "arch": "llama3_1_405b"},
    "data": {"type": "dummy", "max_seq_len": 8192},
    "train": {
        "max_steps": 1000,
        "global_batch_size": 2048,
        "micro_batch_size": 1,
        "precision": "bf16",
        "accelerator": {"pp": 16, "tp": 8},
        "gradient_checkpointing": "full",
        "logging": {"peak_tflops": 989},
    },
}


def test_a_dry_run_of_thousands_of_ranks_takes_seconds() -> None:
    begin = time.monotonic()
    plan = wl.dry_run(LARGE, ranks=16384, memory="80GB")
    seconds = time.monotonic() - begin
    # A second with optimizations; processors are shared.
    assert seconds < 30, seconds
    assert (plan.mesh.world, plan.mesh.sdp, plan.pipeline.stages, len(plan.ranks)) == (16384, 128, 16, 16)
    assert plan.fits is True and plan.fit is not None and plan.fit.needed < 80 * 10**9
    assert plan.peak == max(rank.memory.peak for rank in plan.ranks)
    assert plan.time is not None and plan.time.steps == 1000
    assert {item.pass_ for rank in plan.ranks for item in rank.traffic} == {"forward", "backward"}
    assert plan.ranks[0].stages[0].first_layer == 0
    assert repr(plan).startswith("<DryRun: 405,853,388,800 parameters, 405,853,388,800 of them trained; 16,384 ranks: pp 16")


def test_a_dry_run_that_does_not_fit_says_what_would(tmp_path: Path) -> None:
    plan = wl.dry_run(LARGE, ["train.accelerator.pp=1"], ranks=512, memory="24GB")
    assert plan.fits is False and plan.fit is not None
    assert "does not fit: a rank needs " in repr(plan)
    page = plan._repr_html_()
    assert "does not fit" in page
    assert all(fix.needed <= 24 * 10**9 for fix in plan.fit.remedies)
    # Without a memory to compare with, it is that of this machine.
    small = wl.dry_run(config(tmp_path / "run"), ranks=4)
    assert small.fits is True and not (tmp_path / "run").exists()
    with pytest.raises(wl.UserError, match="does not divide global_batch_size=2"):
        wl.dry_run(config(tmp_path / "run", global_batch_size=2), ranks=4)
