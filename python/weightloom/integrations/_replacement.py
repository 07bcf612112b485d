"""Saves that replace the checkpoint that was there, as trainers save `last` again and again."""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weightloom._agreement import together
from weightloom._errors import OperationalError
from weightloom._group import ranks_of
from weightloom._save import SaveReport, save


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a URL.

    Example:
        >>> from weightloom.integrations._replacement import is_remote
        >>> is_remote("s3://bucket/step_1"), is_remote("step_1")
        (True, False)
    """
    return "://" in os.fspath(path)


def save_replacing(
    state_dict: Mapping[str, Any], path: str | os.PathLike[str], *, process_group: Any = None, **options: Any
) -> SaveReport:
    """Saves like `wl.save`. What is at the path stays until the new checkpoint is complete, and is then removed.

    At no time is there no checkpoint: both are exchanged at once where the file system can do so. Elsewhere, a process
    that is killed between two renames leaves the new one beside the path, where `current` finds it.

    Example:
        >>> import torch
        >>> from weightloom.integrations._replacement import save_replacing
        >>> for number in (1.0, 2.0):
        ...     report = save_replacing({"w": torch.tensor([number])}, "last")
        >>> wl.open("last")["w"].torch(), report.location
        (tensor([2.]), 'last')
    """
    gang = ranks_of(process_group).gang
    if is_remote(path):
        return save(state_dict, path, process_group=process_group, **options)
    target = Path(path)
    # Rank 0 looks: the others may see a folder late.
    _, exists = together(gang, lambda: gang.rank == 0 and _make_ready(target), bool)
    if not exists[0]:
        return save(state_dict, target, process_group=process_group, **options)
    new = _new(target)
    report = save(state_dict, new, process_group=process_group, **options)
    together(gang, lambda: _replace(target, new) if gang.rank == 0 else None)
    return report._replace(location=os.fspath(path))


def current(path: str | os.PathLike[str]) -> Path:
    """Where the checkpoint of a local path is: there, or beside it if a save was killed between two renames.

    Example:
        >>> from weightloom.integrations._replacement import current
        >>> current("last").name
        'last'
    """
    target = Path(path)
    # A new one alone is what a user has removed the other of.
    was_cut_off = not os.path.lexists(target) and _old(target).exists() and _new(target).exists()
    return _new(target) if was_cut_off else target


def remove(path: Path) -> None:
    """Removes a checkpoint, if there is one, and what a killed save has left beside it."""
    for found in (_new(path), _old(path), path):
        _remove(found)


def _new(target: Path) -> Path:
    return target.with_name(f".{target.name}.weightloom-new")


def _old(target: Path) -> Path:
    return target.with_name(f".{target.name}.weightloom-old")


def _make_ready(target: Path) -> bool:
    """Ends a replacement that was cut off, and removes what it left. Returns whether there is a checkpoint."""
    try:
        found = current(target)
        if found != target:
            found.rename(target)
        _remove(_new(target))
        _remove(_old(target))
    except OSError as error:
        raise _failed(target, error) from None
    return os.path.lexists(target)


def _replace(target: Path, new: Path) -> None:
    old = new
    try:
        if not _exchange(new, target):
            old = _old(target)
            target.rename(old)
            new.rename(target)
        _sync(target.parent)
        _remove(old)
    except OSError as error:
        raise _failed(target, error) from None


def _exchange(one: Path, other: Path) -> bool:
    """Exchanges two names at once. Returns whether the system and the file system can."""
    name, here, exchange = ("renameatx_np", -2, 2) if sys.platform == "darwin" else ("renameat2", -100, 2)
    rename: Any = getattr(ctypes.CDLL(None), name, None)
    return rename is not None and rename(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0


def _sync(folder: Path) -> None:
    """Makes renames durable, before what was there is removed."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _failed(target: Path, error: OSError) -> OperationalError:
    return OperationalError(f"cannot replace `{target}`: {error.strerror}", "check the folder's permissions")
