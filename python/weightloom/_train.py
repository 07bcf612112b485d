"""Training from Python."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from weightloom import _weightloom
from weightloom._call import hub_options, option
from weightloom._callback import Callback, Hooks, Record
from weightloom._errors import UserError, WeightloomError
from weightloom._progress import new_display
from weightloom._run import Run, trained
from weightloom._trackers import NAMES
from weightloom._training_progress import TrainingProgress

if TYPE_CHECKING:
    import torch.distributed as dist

    from weightloom._weightloom import Gang

Config = str | os.PathLike[str] | Mapping[str, Any]
"""The YAML file of a run, or its contents."""

Overrides = Mapping[str, Any] | Iterable[str]
"""Values of a config: `{"train.max_steps": 10}`, `{"train": {"max_steps": 10}}` or `["train.max_steps=10"]`."""


def train(
    config: Config,
    overrides: Overrides = (),
    *,
    callbacks: Iterable[Callback | Callable[[Record], object]] = (),
    ranks: int | None = None,
    device: str | None = None,
    report_to: str | Sequence[str] = (),
    force_resume: bool = False,
    allow_programs: bool = False,
    process_group: dist.ProcessGroup | None = None,
    timeout: float = 900.0,
    asset_dir: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (),
    model_path: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (),
    env: str | Iterable[str] = (),
    offline: bool = False,
) -> Run:
    """Trains a model, as `weightloom train` does, from the start or from its last checkpoint.

    Ctrl-C ends the run after the current step, with a checkpoint, and raises `KeyboardInterrupt`; so do SIGTERM,
    SIGHUP and SIGUSR1, which then end the program as usual. `wl.train` with the same arguments resumes the run, and
    ends with the same bits.

    Under torchrun, call `torch.distributed.init_process_group` first; each process is a rank.

    Args:
        config: the YAML file of the run, or its contents as a dict.
        overrides: values instead of those of the config.
        callbacks: instances of `wl.Callback`, and functions that take the record of a step, such as `print`. They run
            in the thread that calls `wl.train`; under torchrun, in the process of the first rank.
        ranks: ranks that train, as threads of this process; 1 by default.
        device: the device instead of that of the config: `"auto"`, `"cpu"`, `"cuda"` or `"cuda:N"`.
        report_to: where metrics go, in addition to `train.logging.report_to`: `"wandb"`, `"mlflow"`, `"trackio"` or
            `"tensorboard"`. A run of the package that is active is used; it is that of the environment's settings
            otherwise.
        force_resume: resume although the config computes something else than that of the checkpoint.
        allow_programs: start the programs that the suite of `train.eval.sway` names with `kind: custom`.
        process_group: the ranks, if they are processes of `torch.distributed`; all of them by default.
        timeout: seconds after which a rank stops waiting for the others.
        asset_dir: folders of cards.
        model_path: folders of models described in YAML.
        env: the environments whose cards apply.
        offline: download nothing.

    Returns:
        The run, which a callback may have stopped before its last step.

    Raises:
        UserError: the config is wrong, another run writes to its folder, or a tracker is not installed.
        CheckFailed: a loss is not a number, or no checkpoint is intact.
        OperationalError: the machine, the disk or another rank failed.

    Example:
        >>> model = dict(vocab_size=64, hidden_size=16, intermediate_size=24, num_hidden_layers=1,
        ...              num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=32)
        >>> config = {
        ...     "model": {"name": "llama", "config_overrides": model},
        ...     "data": {"type": "dummy", "max_seq_len": 16},
        ...     "train": {"max_steps": 4, "global_batch_size": 2, "checkpoint": {"output_dir": "out"}},
        ... }
        >>> run = wl.train(config, callbacks=[lambda record: wl.STOP if record["step"] == 2 else None])
        >>> run.step, run.finished
        (2, False)
        >>> losses = []
        >>> run = wl.train(config, {"train.max_steps": 5}, callbacks=[lambda record: losses.append(record["loss"])])
        >>> run.step, run.finished, run.resumed_after, len(losses)
        (5, True, [2], 3)
    """
    gang = _gang(process_group, ranks, timeout)
    progress = TrainingProgress(new_display() if gang is None or gang.rank == 0 else None)
    hooks = Hooks(callbacks, progress)
    sinks = [report_to] if isinstance(report_to, str) else list(report_to)
    options = [*option("ranks", ranks), *option("device", device), *option("force_resume", force_resume)]
    options += [*option("allow_programs", allow_programs), *option("timeout", None if gang else max(round(timeout), 1))]
    options += hub_options(asset_dir, model_path, env, offline)
    with config_file(config) as file, _ended_by_signals():
        texts = [*assignments(overrides), *_reported(file, overrides, sinks)]
        results = _results(["train", *options, "--", file, *texts], hooks, gang, progress)
    *before, summary = [json.loads(text) for text in results]
    return trained(summary["output_dir"], summary, before)


def _results(arguments: list[str], hooks: Hooks, gang: Gang | None, progress: TrainingProgress) -> list[str]:
    """The results of the command, unless a callback has raised an exception."""
    results: list[str] = []
    try:
        _, results = _weightloom.train(arguments, _Request(hooks, list(hooks.wanted), gang), progress)
    except WeightloomError:
        # An exception before the first step has ended the run as an error.
        if hooks.raised is None:
            raise
    finally:
        progress.close()
    if hooks.raised is not None:
        raise hooks.raised
    return results


class _Request(NamedTuple):
    """What the native module takes."""

    hooks: Hooks
    wanted: list[str]
    gang: Gang | None


def _gang(process_group: dist.ProcessGroup | None, ranks: int | None, timeout: float) -> Gang | None:
    """The ranks of `torch.distributed`; `None` if this process is the only one."""
    from weightloom._group import ranks_of

    gang = ranks_of(process_group, timeout).gang
    if gang.size > 1:
        if ranks not in (None, gang.size):
            raise UserError(f"cannot train on {ranks} ranks: the process group has {gang.size}", "remove `ranks`")
        return gang
    size = os.environ.get("WORLD_SIZE", "1")
    if process_group is None and size != "1" and "TORCHELASTIC_RUN_ID" in os.environ:
        raise UserError(
            f"cannot train as one of {size} processes of torchrun: torch.distributed is not initialized",
            'call `torch.distributed.init_process_group("gloo")` first',
        )
    return None


def assignments(overrides: Overrides, prefix: str = "") -> list[str]:
    """Overrides as arguments of a command.

    Example:
        >>> from weightloom._train import assignments
        >>> assignments({"train.max_steps": 10, "train": {"optimizer": {"lr": 1e-4}}, "data.paths": ["a", "b"]})
        ['train.max_steps=10', 'train.optimizer.lr=0.0001', 'data.paths=["a", "b"]']
    """
    if isinstance(overrides, str):
        return [overrides]
    if not isinstance(overrides, Mapping):
        return list(overrides)
    found: list[str] = []
    for key, value in overrides.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            found += assignments(value, f"{path}.")
        else:
            found.append(f"{path}={_json(value, path)}")
    return found


def _reported(file: str, overrides: Overrides, sinks: Sequence[str]) -> list[str]:
    """The override with which metrics also go to these sinks."""
    if not sinks:
        return []
    known = ("jsonl", "tensorboard", *NAMES)
    for sink in sinks:
        if sink not in known:
            raise UserError(f"cannot report to {sink!r}: there is no such tracker", f"use one of {', '.join(known)}")
    arguments = ["train", "--dump-config", "--", file, *assignments(overrides)]
    (text,) = _weightloom.call(arguments)[1]
    configured: list[str] = json.loads(text)["train"]["logging"]["report_to"]
    return [f"train.logging.report_to={_json(list(dict.fromkeys([*configured, *sinks])), 'report_to')}"]


def _json(value: object, path: str) -> str:
    """A value as JSON, which is YAML too."""

    def plain(other: Any) -> Any:
        if isinstance(other, os.PathLike):
            return os.fspath(other)
        # Numbers of NumPy and torch.
        if hasattr(other, "item") and getattr(other, "ndim", None) == 0:
            return other.item()
        if isinstance(other, Mapping):
            return dict(other)
        at = f" at `{path}`" if path else ""
        hint = "use strings, numbers, booleans, `None`, lists and dicts"
        raise UserError(f"cannot use the config: it has a {type(other).__name__}{at}", hint)

    return json.dumps(value, default=plain, ensure_ascii=False, indent=None if path else 1)


@contextmanager
def config_file(config: Config) -> Iterator[str]:
    """The file of a config. Errors of one in memory name no file."""
    if isinstance(config, (str, os.PathLike)):
        yield os.fspath(config)
        return
    if not isinstance(config, Mapping):
        raise UserError(f"cannot use {config!r} as a config", "pass the path of a YAML file, or a dict")
    with tempfile.TemporaryDirectory(prefix="weightloom-") as folder:
        file = Path(folder, "config")
        file.write_text(_json(config, ""), encoding="utf-8")
        try:
            yield str(file)
        except WeightloomError as error:
            if str(file) not in error.message:
                raise
            raise type(error)(_without_file(error.message, str(file)), error.hint) from None


def _without_file(message: str, file: str) -> str:
    """A message that names no position in a file that the user did not write.

    Example:
        >>> from weightloom._train import _without_file
        >>> _without_file("/tmp/x/config:3:5: train.seed: expected a number", "/tmp/x/config")
        'the config: train.seed: expected a number'
    """
    import re

    return re.sub(re.escape(file) + r"(:\d+)*", "the config", message)


class _Ended(BaseException):
    """A signal that ends the program has come."""


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Ends the work inside before a signal ends the program, unless the program handles that signal itself."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    ended: list[int] = []

    def end(number: int, _: object) -> None:
        # Schedulers send several.
        if not ended:
            ended.append(number)
            raise _Ended

    names = ("SIGTERM", "SIGHUP", "SIGUSR1")
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    taken = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, end)
    try:
        yield
    except _Ended:
        pass
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)
    if ended:
        signal.raise_signal(ended[0])
