"""Checkpoints that are open: a mapping of names to tensors, of which nothing has been read yet."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from weightloom import _weightloom
from weightloom._amounts import counted
from weightloom._amounts import size as size_text
from weightloom._dtypes import native_name, torch_dtype
from weightloom._errors import MissingTensor, UserError
from weightloom._progress import new_progress
from weightloom._stored_tensor import Part, StoredTensor, TensorInfo, tensor_over
from weightloom._visible import visible

if TYPE_CHECKING:
    import torch

    from weightloom._tensor_stats import TensorStats


def open(path: str | os.PathLike[str]) -> Checkpoint:
    """Opens a checkpoint in any format. Only its headers are read.

    Args:
        path: a file, a folder, a run (its newest checkpoint), a card, an `s3://`, `gs://`, `az://` or `https://` URL,
            or a model on Hugging Face such as `hf://org/name`, which is downloaded once.

    Raises:
        UserError: there is no such checkpoint, or it has no known format.
        CheckFailed: it is damaged.
        OperationalError: it cannot be read or downloaded.

    Example:
        >>> import torch
        >>> from safetensors.torch import save_file
        >>> save_file({"w": torch.arange(6.0).reshape(2, 3), "b": torch.zeros(2)}, "model.safetensors")
        >>> checkpoint = wl.open("model.safetensors")
        >>> list(checkpoint)
        ['b', 'w']
        >>> checkpoint["w"].shape
        (2, 3)
        >>> checkpoint["w"][0].torch()
        tensor([0., 1., 2.])
    """
    name = os.fspath(path)
    if not isinstance(name, str) or not _is_text(name):
        raise UserError(f"cannot open {name!r}: it is not UTF-8 text", "rename it")
    progress = new_progress()
    try:
        return Checkpoint(_weightloom.open_checkpoint(name, progress))
    finally:
        progress.close()


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


class Checkpoint(Mapping[str, StoredTensor]):
    """A checkpoint that is open: a mapping of names to tensors, of which nothing has been read yet.

    Entries that are not tensors, such as the step of an optimizer, are listed in `entries` and read with `value`. Any
    number of threads may read at once. A checkpoint can be pickled: it is opened again where it is unpickled. In a
    forked process, local ones can be read; those of object stores have to be opened again there.

    Example:
        >>> import torch
        >>> torch.save({"model": {"w": torch.ones(2)}, "epoch": 3}, "state.pt")
        >>> checkpoint = wl.open("state.pt")
        >>> checkpoint
        <Checkpoint .../state.pt: torch, 1 tensor, 8 B>
        >>> checkpoint.state_dict()
        {'model': {'w': tensor([1., 1.])}, 'epoch': 3}
    """

    __slots__ = ("__weakref__", "_infos", "native")

    def __init__(self, native: _weightloom.Checkpoint) -> None:
        self.native = native
        """The native half, which reads."""
        infos = (TensorInfo(info[0], info[1], tuple(info[2]), *info[3:]) for info in native.tensors())
        self._infos = {info.name: info for info in infos}

    @property
    def location(self) -> str:
        """Where it is: an absolute path or a URL."""
        return self.native.location

    @property
    def format(self) -> str:
        """Its format, such as `safetensors` or `torch.distributed.checkpoint`."""
        return self.native.format

    @property
    def step(self) -> int | None:
        """The training step that it was saved at, if it says one."""
        return self.native.step

    @property
    def metadata(self) -> dict[str, str]:
        """Its format's metadata, such as the `general.*` fields of a GGUF file."""
        return self.native.metadata

    @property
    def files(self) -> dict[str, int]:
        """Its files, by name, with their lengths in bytes."""
        return dict(self.native.files)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors once decoded."""
        return sum(info.nbytes for info in self._infos.values())

    @property
    def stored_nbytes(self) -> int:
        """Bytes that all tensors take in the files."""
        return sum(info.stored_nbytes for info in self._infos.values())

    @property
    def num_parameters(self) -> int:
        """Elements of all tensors."""
        return sum(math.prod(info.shape) for info in self._infos.values())

    @property
    def stated_fingerprint(self) -> str | None:
        """The fingerprint that its manifest states, if it has one. Only `fingerprint` and `wl.verify` check it."""
        return self.native.stated_fingerprint

    @property
    def entries(self) -> tuple[str, ...]:
        """The names of entries that are not tensors."""
        return tuple(self.native.values())

    def __getitem__(self, name: str) -> StoredTensor:
        if not isinstance(name, str):
            raise MissingTensor(f"cannot find a tensor by {name!r}", "use its name")
        if name not in self._infos:
            self.native.check_name(name)
        info = self._infos[name]
        return StoredTensor(self, info, Part.whole(info.shape))

    def __contains__(self, name: object) -> bool:
        return name in self._infos

    def __iter__(self) -> Iterator[str]:
        return iter(self._infos)

    def __len__(self) -> int:
        return len(self._infos)

    # A mapping would compare its values, which are handles. `wl.diff` compares elements.
    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self.location,)

    def value(self, name: str) -> Any:
        """Reads an entry that is not a tensor.

        Args:
            name: one of `entries`.

        Returns:
            A number, text, list or dict; `bytes` if it is not stored as one of these.

        Raises:
            MissingTensor: there is no such entry.
            WeightloomError: it cannot be read.

        Example:
            >>> import torch
            >>> torch.save({"w": torch.ones(2), "epoch": 3}, "state.pt")
            >>> checkpoint = wl.open("state.pt")
            >>> checkpoint.entries, checkpoint.value("epoch")
            (('epoch',), 3)
        """
        stored = self.native.value(name)
        if stored is None:
            hint = f"read the tensor `{name}` with `checkpoint[name]`" if name in self else "see `checkpoint.entries`"
            raise MissingTensor(f"{self.location} has no entry `{name}` that is not a tensor", hint)
        try:
            return json.loads(stored)
        except (ValueError, RecursionError):
            return stored

    def fingerprint(self) -> str:
        """Computes the fingerprint of all tensors: of their names, dtypes, shapes and elements. Reads every byte.

        It does not depend on the format, the files, or the number of ranks that wrote them.

        Raises:
            WeightloomError: a file cannot be read.

        Example:
            >>> import torch
            >>> from safetensors.torch import save_file
            >>> save_file({"w": torch.ones(2)}, "model.safetensors")
            >>> torch.save({"w": torch.ones(2)}, "model.pt")
            >>> wl.open("model.safetensors").fingerprint() == wl.open("model.pt").fingerprint()
            True
        """
        return self._fingerprints()[0]

    def tensor_fingerprints(self) -> dict[str, str]:
        """Computes the fingerprint of each tensor. Reads every byte.

        Raises:
            WeightloomError: a file cannot be read.

        Example:
            >>> import torch
            >>> from safetensors.torch import save_file
            >>> save_file({"w": torch.ones(2), "v": torch.zeros(2)}, "model.safetensors")
            >>> sorted(wl.open("model.safetensors").tensor_fingerprints())
            ['v', 'w']
        """
        return self._fingerprints()[1]

    def _fingerprints(self) -> tuple[str, dict[str, str]]:
        progress = new_progress()
        try:
            return self.native.fingerprint(progress)
        finally:
            progress.close()

    def stats(self) -> dict[str, TensorStats]:
        """Computes statistics of the elements of each tensor. Reads every byte.

        Raises:
            WeightloomError: a file cannot be read.

        Example:
            >>> import torch
            >>> from safetensors.torch import save_file
            >>> save_file({"w": torch.tensor([1.0, 2.0, torch.nan])}, "model.safetensors")
            >>> wl.open("model.safetensors").stats()["w"]
            TensorStats(minimum=1.0, maximum=2.0, mean=1.5, nan=1, infinite=0, zero=0)
        """
        from weightloom._tensor_stats import stats_of

        return stats_of(self)

    def load(
        self, dtype: object | None = None, device: torch.device | str | int | None = None
    ) -> dict[str, torch.Tensor]:
        """Reads all tensors into a dict of torch tensors, by name.

        Those that are stored as they are in local files are mapped: pages are read when they are used, and writes stay
        in memory. The files must not be cut short meanwhile.

        Args:
            dtype: the dtype to convert floating-point tensors to, of torch or by name.
            device: the device to copy to; by default the CPU.

        Raises:
            UserError: torch is not installed, or there is no such dtype.
            WeightloomError: a file cannot be read.

        Example:
            >>> import torch
            >>> from safetensors.torch import save_file
            >>> save_file({"w": torch.ones(2), "step": torch.tensor(3)}, "model.safetensors")
            >>> wl.open("model.safetensors").load(dtype=torch.bfloat16)
            {'step': tensor(3), 'w': tensor([1., 1.], dtype=torch.bfloat16)}
        """
        chosen = None if dtype is None else native_name(dtype)
        kinds = {name: torch_dtype(_read_as(info.dtype, chosen)) for name, info in self._infos.items()}
        progress = new_progress()
        try:
            buffers = self.native.read_all(chosen, progress)
        finally:
            progress.close()
        tensors = {name: tensor_over(buffer, kinds[name], self._infos[name].shape) for name, buffer in buffers}
        return tensors if device is None else {name: tensor.to(device) for name, tensor in tensors.items()}

    def state_dict(
        self, dtype: object | None = None, device: torch.device | str | int | None = None
    ) -> dict[str, Any]:
        """Reads everything into a state dict as it was saved: nested, with torch tensors and values.

        Keys are text, but for the numbers of parameters in the state of an optimizer. Tuples are lists.

        Args:
            dtype: the dtype to convert floating-point tensors to, of torch or by name.
            device: the device to copy to; by default the CPU.

        Raises:
            UserError: torch is not installed, or there is no such dtype.
            WeightloomError: a file cannot be read.

        Example:
            >>> import torch
            >>> model = torch.nn.Linear(2, 1)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "state.pt")
            >>> state = wl.open("state.pt").state_dict()
            >>> model.load_state_dict(state["model"])
            <All keys matched successfully>
            >>> optimizer.load_state_dict(state["optimizer"])
        """
        from weightloom._nested_state import nested

        values = {name: self.value(name) for name in self.entries}
        return nested(self.load(dtype, device) | values, self.native.paths())

    def __repr__(self) -> str:
        step = "" if self.step is None else f", step {self.step}"
        count = counted(len(self), "tensor")
        return f"<Checkpoint {visible(self.location)}: {self.format}{step}, {count}, {size_text(self.nbytes)}>"

    def _repr_html_(self) -> str:
        from weightloom._html import headline, page, table

        stored = "" if self.stored_nbytes == self.nbytes else f"{size_text(self.stored_nbytes)} stored"
        facts = (
            self.location,
            self.format,
            "" if self.step is None else f"step {self.step}",
            counted(len(self), "tensor"),
            counted(self.num_parameters, "parameter"),
            size_text(self.nbytes),
            stored,
            f"fingerprint {self.stated_fingerprint}" if self.stated_fingerprint else "",
        )
        columns = ["tensor", "dtype", "shape", "#size"]
        if any(info.quantization for info in self._infos.values()):
            columns.append("stored as")
        rows = (
            (info.name, info.dtype, list(info.shape), size_text(info.nbytes), info.quantization or "")[: len(columns)]
            for info in self._infos.values()
        )
        tensors = table(columns, rows, len(self))
        others = table(("entries that are not tensors",), ((name,) for name in self.entries), len(self.entries))
        return page(headline(*facts), tensors, others if self.entries else "")


def _read_as(stored: str, chosen: str | None) -> str:
    """The dtype that a tensor is read as."""
    is_float = stored.startswith(("f", "bf"))
    return chosen if chosen is not None and is_float else stored
