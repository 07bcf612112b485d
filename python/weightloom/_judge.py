"""Judging what fine-tuning changed."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from weightloom import _weightloom
from weightloom._call import Place, call, hub_options, option, options, text_of
from weightloom._errors import UserError
from weightloom._html import escape, page
from weightloom._progress import Progress, new_display
from weightloom._report import Report
from weightloom._visible import visible

Statistics = Literal["paired", "reference"]
"""How verdicts are reached: by paired tests against noise of the adapter's size, or by the rules of dlm-sway."""


def judge(
    suite: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    *,
    base: Any = None,
    tuned: Any = None,
    document: str | os.PathLike[str] | None = None,
    tokenizer: Any = None,
    only: str | Iterable[str] = (),
    weights: str | Mapping[str, float] | None = None,
    statistics: Statistics | None = None,
    trace: str | os.PathLike[str] | None = None,
    cache: bool = True,
    ranks: int | None = None,
    device: str | None = None,
    allow_programs: bool = False,
    asset_dir: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (),
    model_path: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (),
    env: str | Iterable[str] = (),
    offline: bool = False,
) -> Report:
    """Judges a fine-tuned model against its base: what changed, what was learned, and what was lost.

    With a suite file alone, the models are those that the file names, as with `weightloom sway run`. With `tuned`, they
    are modules in memory: a model of transformers or PEFT, where it is and in its precision. Nothing is copied: of a
    model with an adapter of PEFT, the adapter is switched off for the base, and scaled or replaced by noise in place.
    Afterwards, also after an exception or Ctrl-C, the modules are as they were. The verdict is that of the command on
    the saved adapter, with numbers that differ by rounding.

    Args:
        suite: a suite file, or a suite as a dict, which needs no `models` for modules in memory.
        base: the base, as a module. Not needed if `tuned` has an adapter, which is switched off.
        tuned: the tuned model, as a module.
        document: what the model was tuned on, to generate a suite from as `weightloom sway autogen` does: a file
            (Markdown, `.dlm`, `.jsonl`, `.json`), or a text in Markdown.
        tokenizer: that of the modules: one of transformers, or a folder with its files. By default that of the folder
            or repository that the model was loaded from.
        only: names of entries to run, with the noise that they are compared with.
        weights: weights of categories, as `{"adherence": 0.5}`, over those of the suite.
        statistics: how verdicts are reached. By default as the suite says.
        trace: a file to which each question is appended, as a line of JSON.
        cache: whether answers of files are cached. Those of modules never are.
        ranks: the number of threads that share the questions, each with models of its own.
        device: where files are computed: `cpu`, `cuda:0`, `auto`.
        allow_programs: whether a suite may start the programs that it names; read them first.
        asset_dir: folders with cards of models.
        model_path: folders with families of models.
        env: environments in which cards are looked up.
        offline: whether nothing is downloaded.

    Returns:
        The report. A bad verdict is no exception: see `Report.grade` and `Report.refusals`.

    Raises:
        UserError: the suite is wrong, or the modules cannot be compared.
        OperationalError: a model failed.

    Example:
        >>> report = wl.judge("weightloom-quickstart/sway.yaml", only="choices")
        >>> report["choices"].verdict
        'pass'

        With a model in memory, here of a checkpoint that is exported for transformers:

        >>> from peft import LoraConfig, get_peft_model
        >>> from transformers import AutoModelForCausalLM
        >>> base = AutoModelForCausalLM.from_pretrained("weightloom-quickstart/pretrain/checkpoints/step_4")
        >>> tuned = get_peft_model(base, LoraConfig(target_modules=["q_proj"], init_lora_weights=False))
        >>> suite = {"suite": [{"name": "change", "kind": "delta_kl", "prompts": ["A rank is", "A mesh is"]}]}
        >>> wl.judge(suite, tuned=tuned)["change"].value > 0
        True
    """
    if base is None and tuned is None:
        for name, value in {"document": document, "tokenizer": tokenizer}.items():
            if value is not None:
                raise UserError(f"cannot judge `{name}` without a model", "pass modules: `tuned=…`, and `base=…`")
        return _judge_files(
            suite,
            options("only", only),
            option("weights", _weights(weights)),
            option("statistics", statistics),
            option("trace", trace),
            option("no_cache", not cache),
            option("ranks", ranks),
            option("device", device),
            option("allow_programs", allow_programs),
            hub_options(asset_dir, model_path, env, offline),
        )
    of_files = {
        "ranks": ranks, "device": device, "allow_programs": allow_programs, "asset_dir": asset_dir, "model_path": model_path,
        "env": env,
    }  # fmt: skip
    for name, given in of_files.items():
        if given not in (None, False, ()):
            raise UserError(f"cannot judge modules with `{name}`", "leave it out: they are judged where they are")
    names = [only] if isinstance(only, str) else list(only)
    return _judge_modules(base, tuned, _Asked(suite, document, tokenizer, names, _weights(weights), statistics, trace))


def _judge_files(suite: str | os.PathLike[str] | Mapping[str, Any] | None, *flags: list[str]) -> Report:
    if suite is None:
        raise UserError("cannot judge: there is no suite", "pass a suite file, or modules: `tuned=…`")
    if isinstance(suite, Mapping):
        raise UserError("cannot judge files by a dict", "write the suite to a file, or pass modules: `tuned=…`")
    return _report(call("sway run", [suite], *flags, progress=AnswerProgress(new_display())).result)


@dataclass(frozen=True)
class _Asked:
    """What modules are asked, as callers say it."""

    suite: str | os.PathLike[str] | Mapping[str, Any] | None
    document: str | os.PathLike[str] | None
    tokenizer: Any
    only: list[str]
    weights: str | None
    statistics: Statistics | None
    trace: str | os.PathLike[str] | None


@dataclass(frozen=True)
class _Judgement:
    """What is judged, and by what: the native module's `Judgement`."""

    base: str
    tuned: str
    is_adapter: bool
    views: Sequence[str]
    layers: Sequence[str]
    vocabulary: int
    max_positions: int | None
    notes: Sequence[str]
    tokenizer: Path
    suite: Path | None
    suite_text: str | None
    document: Path | None
    only: Sequence[str]
    weights: str | None
    statistics: str | None
    trace: Path | None


def _judge_modules(base: Any, tuned: Any, asked: _Asked) -> Report:
    from weightloom._live_model import LiveModel, compared, model_of, undisturbed
    from weightloom._live_text import write_tokenizer

    if tuned is None:
        raise UserError("cannot judge `base` alone", "pass the tuned model: `tuned=…`")
    if asked.statistics not in (None, *get_args(Statistics)):
        known = " or ".join(f"`{name}`" for name in get_args(Statistics))
        raise UserError(f"unknown statistics `{asked.statistics}`", f"use {known}")
    if (asked.suite is None) == (asked.document is None):
        raise UserError("cannot judge: pass either `suite` or `document`", "a document becomes a suite of its own")
    comparison = compared(base, tuned)
    model = LiveModel(comparison)
    progress = AnswerProgress(new_display())
    with tempfile.TemporaryDirectory(prefix="weightloom-") as name:
        folder = Path(name)
        write_tokenizer(asked.tokenizer, model_of(comparison.tuned), folder)
        judgement = _Judgement(
            base=comparison.base_name,
            tuned=comparison.tuned_name,
            is_adapter=comparison.is_adapter,
            views=comparison.views,
            layers=comparison.decoder_layers,
            vocabulary=comparison.vocabulary,
            max_positions=comparison.max_positions,
            notes=comparison.notes,
            tokenizer=folder,
            suite=None if asked.suite is None or isinstance(asked.suite, Mapping) else Path(asked.suite),
            suite_text=_suite_text(asked.suite, comparison.base_name, comparison.tuned_name),
            document=None if asked.document is None else _document(asked.document, folder),
            only=asked.only,
            weights=asked.weights,
            statistics=asked.statistics,
            trace=None if asked.trace is None else Path(asked.trace),
        )
        with undisturbed(comparison.base, comparison.tuned):
            try:
                text = _weightloom.judge_live(model, judgement, progress)
            finally:
                model.close()
                progress.close()
    return Report(text)


def _suite_text(suite: str | os.PathLike[str] | Mapping[str, Any] | None, base: str, tuned: str) -> str | None:
    """The text of a suite that is a dict, with the models that are in memory."""
    if not isinstance(suite, Mapping):
        return None
    models = {"base": {"base": base}, "ft": {"base": base, "adapter": tuned}}
    try:
        return json.dumps({"models": models, **suite}, indent=1, default=os.fspath)
    except (TypeError, ValueError) as error:
        raise UserError(f"cannot judge by this suite: {error}", "use what a YAML file can hold") from None


def _document(document: str | os.PathLike[str], folder: Path) -> Path:
    """The file of a document, which a text becomes too."""
    if not isinstance(document, str) or (len(document) < 4096 and os.path.exists(document)):
        return Path(document).absolute()
    if len(document.split()) < 2:
        raise UserError(f"cannot judge by the document `{document}`: there is no such file", "pass a file or its text")
    file = folder / "document.md"
    file.write_text(document, encoding="utf-8")
    return file


def _weights(weights: str | Mapping[str, float] | None) -> str | None:
    if weights is None or isinstance(weights, str):
        return weights
    return ",".join(f"{name}={value}" for name, value in weights.items())


def _report(data: dict[str, Any]) -> Report:
    return Report(json.dumps(data))


class AnswerProgress(Progress):
    """A bar of answered questions."""

    def _bar(self) -> str:
        return f"{self._work or 'reading'}: {self._done:,} of {self._total:,} answers"


@dataclass(frozen=True, repr=False)
class Check:
    """The outcome of a quick check."""

    light: Literal["green", "yellow", "red"]
    """Green: the adapter changes the model, which keeps what it knew. Yellow: that is undecided. Red: the change is not
    told from noise, or the model lost what it knew, or it could not be measured.
    """
    sentence: str
    """The outcome in a sentence."""
    report: Report
    """The report with all numbers."""

    def __repr__(self) -> str:
        return f"<Check {visible(self.sentence)}>"

    def _repr_html_(self) -> str:
        return page(f"<div><strong>{escape(self.sentence)}</strong></div>", self.report._repr_html_())


def check(
    adapter: Place,
    *,
    base: Place | None = None,
    prompts: str | os.PathLike[str] | Iterable[str] | None = None,
    statistics: Statistics = "paired",
    device: str | None = None,
    asset_dir: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (),
    model_path: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (),
    env: str | Iterable[str] = (),
    offline: bool = False,
) -> Check:
    """Checks quickly whether an adapter changes the model more than noise would, and whether the model keeps what it knew.

    Args:
        adapter: an adapter in PEFT's or MLX's format, or a tuned model: a folder, run, or `org/name`.
        base: the base model. By default the one that the adapter names.
        prompts: prompts to compare on, or a file with one per line. By default built-in ones.
        statistics: how verdicts are reached.
        device: where it is computed: `cpu`, `cuda:0`, `auto`.
        asset_dir: folders with cards of models.
        model_path: folders with families of models.
        env: environments in which cards are looked up.
        offline: whether nothing is downloaded.

    Raises:
        UserError: there is no such adapter, or it does not name its base.
        OperationalError: a model failed.

    Example:
        >>> checked = wl.check("weightloom-quickstart/tune", base="weightloom-quickstart/pretrain")
        >>> checked.light in ("green", "yellow", "red")
        True
        >>> checked.report["change"].kind
        'delta_kl'
    """
    with tempfile.TemporaryDirectory(prefix="weightloom-") as folder:
        file = prompts
        if prompts is not None and not isinstance(prompts, (str, os.PathLike)):
            file = Path(folder, "prompts.txt")
            lines = [_line(prompt) for prompt in prompts]
            if not lines:
                raise UserError("cannot check without prompts", "pass some, or leave `prompts` out for built-in ones")
            file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
        found = call(
            "sway check",
            [adapter],
            option("base", None if base is None else text_of(base)),
            option("prompts", file),
            option("statistics", statistics),
            option("device", device),
            hub_options(asset_dir, model_path, env, offline),
            progress=AnswerProgress(new_display()),
        ).result
    return Check(found["light"], found["sentence"], _report(found["report"]))


def _line(prompt: str) -> str:
    """A prompt as a line of a file."""
    if "\n" in prompt or "\r" in prompt:
        raise UserError(f"cannot check with the prompt {prompt!r}: it has several lines", "use `wl.judge` with a suite")
    return prompt
