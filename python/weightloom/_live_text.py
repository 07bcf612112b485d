"""The files of a tokenizer, for models in the program's memory."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from weightloom._errors import UserError

_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "added_tokens.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)
"""Files of a tokenizer, of which a folder has some."""


def write_tokenizer(tokenizer: Any, model: Any, folder: Path) -> None:
    """Writes the files that say how a model's texts become tokens, and where its generations end.

    Raises:
        UserError: there is no tokenizer.
    """
    if tokenizer is None:
        tokenizer = _own_tokenizer(model)
    if isinstance(tokenizer, (str, os.PathLike)):
        _copy(Path(tokenizer), folder)
    elif hasattr(tokenizer, "save_pretrained"):
        tokenizer.save_pretrained(folder)
    elif hasattr(tokenizer, "save"):
        tokenizer.save(str(folder / "tokenizer.json"))
    else:
        raise UserError(
            f"cannot judge with a tokenizer of the type {type(tokenizer).__name__}",
            "pass one of transformers, or a folder with its files",
        )
    # Where generations end, and nothing else that a model's own configs may hold.
    own = getattr(model, "generation_config", None)
    said = {name: getattr(own, name, None) for name in ("eos_token_id", "repetition_penalty")}
    _write(folder / "generation_config.json", said)
    _write(folder / "config.json", {"eos_token_id": _stated_eos(model.config)})


def _stated_eos(config: Any) -> Any:
    """The token that a config says ends a text. A default of its class, which its file does not have, says nothing: the
    tokenizer knows better.
    """
    inner = config.get_text_config()
    eos = getattr(inner, "eos_token_id", None)
    name = getattr(config, "_name_or_path", "")
    if not name or eos != getattr(type(inner)(), "eos_token_id", None):
        return eos
    try:
        stored, _ = type(config).get_config_dict(name, local_files_only=True)
    except (OSError, ValueError):
        return eos
    is_stated = any("eos_token_id" in (part or {}) for part in (stored, stored.get("text_config")))
    return eos if is_stated else None


def _own_tokenizer(model: Any) -> Any:
    """The tokenizer that a model was published with, if it is on this machine."""
    name = getattr(model.config, "_name_or_path", "")
    if name and (Path(name) / "tokenizer.json").is_file():
        return name
    if name:
        from transformers import AutoTokenizer

        try:
            return AutoTokenizer.from_pretrained(name, local_files_only=True)
        except (OSError, ValueError):
            pass
    raise UserError(f"cannot judge `{name or type(model).__name__}`: it has no tokenizer", "pass it: `tokenizer=…`")


def _copy(source: Path, folder: Path) -> None:
    found = [source / name for name in _FILES if (source / name).is_file()]
    if not found:
        raise UserError(f"cannot read a tokenizer: `{source}` has none", "name a folder with `tokenizer.json`")
    for file in found:
        shutil.copyfile(file, folder / file.name)


def _write(file: Path, values: dict[str, Any]) -> None:
    file.write_text(json.dumps({name: value for name, value in values.items() if value is not None}))
