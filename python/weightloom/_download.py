"""Downloads of models."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from weightloom._amounts import size
from weightloom._call import call, hub_options


@dataclass(frozen=True, slots=True, repr=False)
class Download:
    """A model that is on this machine."""

    name: str
    """The name that was asked for."""
    location: str
    """Where it is: a path, or the URL of a model that is used in place."""
    commit: str | None
    """The commit of its repository, if it came from one."""
    nbytes: int | None
    """Bytes of its files, if they were downloaded."""
    hashes_verified: bool | None
    """Whether all hashes were compared, and not only sizes; `None` for a model that is used in place."""

    def __repr__(self) -> str:
        amount = "" if self.nbytes is None else f", {size(self.nbytes)}"
        commit = "" if self.commit is None else f", commit {self.commit}"
        return f"<Download {self.name}: {self.location}{amount}{commit}>"


def fetch(
    name: str,
    *,
    asset_dir: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (),
    model_path: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (),
    env: str | Iterable[str] = (),
    offline: bool = False,
) -> Download:
    """Downloads a model, unless it is here already. Downloads that were interrupted are continued.

    Args:
        name: a card such as `smollm2_135m`, `org/name`, or a URL such as `hf://org/name@revision`.
        asset_dir: folders of cards, which override others.
        model_path: folders of described models.
        env: environments whose cards come first.
        offline: use local files only.

    Raises:
        UserError: there is no such model, or it is not here and `offline` is set.
        OperationalError: the network or the disk failed.

    Example:
        >>> from pathlib import Path
        >>> import torch
        >>> from safetensors.torch import save_file
        >>> Path("model").mkdir()
        >>> save_file({"w": torch.ones(2)}, "model/model.safetensors")
        >>> card = "name: mine\\ncheckpoint: " + str(Path("model").absolute())
        >>> _ = Path("mine.yaml").write_text(card)
        >>> wl.fetch("mine", asset_dir=".")
        <Download mine: .../model>
    """
    found = call("fetch", [name], hub_options(asset_dir, model_path, env, offline)).result
    return Download(
        name=found["name"],
        location=found["place"],
        commit=found["commit"],
        nbytes=found["bytes"],
        hashes_verified=found["checked"],
    )
