"""Ranks of `torch.distributed` as a gang: gloo moves the bytes, and the native module does the rest."""

from __future__ import annotations

import atexit
import os
import threading
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from weightloom._errors import UserError
from weightloom._tensor_memory import bytes_of

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

    from weightloom._weightloom import Gang, Inbox

FRAME = 512
"""Bytes of the first part of each message, which says how long the rest is. Gloo needs to know lengths."""

LENGTH = 8
FIRST, REST = 0, 1

LEAVING, KNOWN = 2**64 - 1, 2**64 - 2
"""Instead of a length: the rank leaves, and the answer to that."""

LEAVE_SECONDS = 30.0
"""Seconds to wait for these answers. Threads give them, also of ranks that compute; on a busy machine they take a while."""

FOREVER = timedelta(days=365)

DEFAULT_TIMEOUT = 900.0
"""Seconds after which a rank stops waiting for the others."""


class GroupTransport:
    """Sends messages through a gloo group of its own."""

    def __init__(self, group: dist.ProcessGroup, inbox: Inbox) -> None:
        self._group: Any = group
        self._inbox = inbox
        # Both parts of a message are sent without one of another thread in between.
        self._sending = threading.Lock()
        self._sent: list[tuple[Any, Any]] = []
        self._ending = threading.Lock()
        self._is_leaving = False
        self._expected = set(range(group.size())) - {group.rank()}
        """Ranks that neither leave nor know that this one does."""
        self._process = os.getpid()
        # Python's threads end with the process while they wait; the native module's would not.
        self._receiver = threading.Thread(target=self._receive, name="weightloom-receive", daemon=True)
        self._receiver.start()

    def send(self, to: int, message: bytearray) -> None:
        """Sends bytes, which must not change any more."""
        import torch

        frame = bytearray(FRAME)
        frame[:LENGTH] = len(message).to_bytes(LENGTH, "little")
        inline = message[: FRAME - LENGTH]
        frame[LENGTH : LENGTH + len(inline)] = inline
        parts = [(torch.frombuffer(frame, dtype=torch.uint8), FIRST)]
        if len(message) > len(inline):
            parts.append((torch.frombuffer(message, dtype=torch.uint8)[len(inline) :], REST))
        with self._sending:
            self._sent.extend((self._group.send([tensor], to, tag), tensor) for tensor, tag in parts)

    def flush(self, seconds: float) -> None:
        """Waits until what was sent has left this process."""
        with self._sending:
            sent, self._sent = self._sent, []
        for work, _ in sent:
            work.wait(timedelta(seconds=max(seconds, 0.001)))

    def leave(self) -> None:
        """Ends the receiving thread before Python ends.

        Its wait is in C++ and ends when another rank does. If Python were ending by then, it would end the thread inside
        of C++, which aborts the process.
        """
        if self._process != os.getpid():
            return
        with self._ending:
            self._is_leaving = True
            expected = sorted(self._expected)
        # A rank that is lost has ended the thread, or will do so; the others are told all the same.
        for rank in expected:
            with suppress(Exception):
                self._signal(rank, LEAVING)
        with suppress(Exception):
            self.flush(LEAVE_SECONDS)
        self._receiver.join(LEAVE_SECONDS)

    def _signal(self, to: int, sign: int) -> None:
        import torch

        frame = bytearray(FRAME)
        frame[:LENGTH] = sign.to_bytes(LENGTH, "little")
        tensor = torch.frombuffer(frame, dtype=torch.uint8)
        with self._sending:
            self._sent.append((self._group.send([tensor], to, FIRST), tensor))

    def _receive(self) -> None:
        import torch

        frame = torch.empty(FRAME, dtype=torch.uint8)
        try:
            while True:
                work = self._group.recv_anysource([frame], FIRST)
                work.wait(FOREVER)
                source = work._source_rank()
                first = bytes(bytes_of(frame))
                length = int.from_bytes(first[:LENGTH], "little")
                if length in (LEAVING, KNOWN):
                    with self._ending:
                        self._expected.discard(source)
                        # If both leave, that is the answer.
                        is_asked = length == LEAVING and not self._is_leaving
                    if is_asked:
                        self._signal(source, KNOWN)
                    if not self._expected:
                        self._inbox.lose("all other ranks have ended, or this one")
                        return
                    continue
                message = bytearray(length)
                inline = min(length, FRAME - LENGTH)
                message[:inline] = first[LENGTH : LENGTH + inline]
                if length > inline:
                    rest = torch.frombuffer(message, dtype=torch.uint8)[inline:]
                    self._group.recv([rest], source, REST).wait(FOREVER)
                self._inbox.deliver(source, message)
        except Exception as error:
            # A rank ended, or the group did: waits for its messages end.
            self._inbox.lose(str(error).splitlines()[0] if str(error) else type(error).__name__)


class Ranks:
    """Processes that save and load together."""

    def __init__(self, gang: Gang, group: Any) -> None:
        self.gang = gang
        self.group = group
        """The default group when they met."""
        self.process = os.getpid()
        self.saver: Any = None
        """What saves in the background, once something was saved."""


_KNOWN: dict[tuple[tuple[int, ...] | None, float], Ranks] = {}
_OF_PARENT: list[Ranks] = []
"""Those of the process that this one was forked from. To free them could wait for its threads."""

_TRANSPORTS: list[GroupTransport] = []
"""All of this process."""

_MEETING = threading.Lock()


# Before `_save` registers what waits for a save, and so after that has been called.
@atexit.register
def _leave() -> None:
    for transport in _TRANSPORTS:
        transport.leave()


def ranks_of(process_group: dist.ProcessGroup | None = None, timeout: float = DEFAULT_TIMEOUT) -> Ranks:
    """The ranks of a process group; this process alone if `torch.distributed` is not in use.

    The first call makes a gloo group of the same ranks, so every rank of the group calls this.

    Args:
        process_group: the group; by default the group of all processes.
        timeout: seconds after which a rank stops waiting for the others.

    Raises:
        UserError: this process is not in the group, or was forked from one that is.
    """
    from weightloom._weightloom import Gang, Inbox

    numbers = _numbers_of(process_group)
    key = (numbers, timeout)
    with _MEETING:
        known = _KNOWN.get(key)
        if known is not None and known.process != os.getpid():
            if numbers is not None:
                raise UserError(
                    "cannot use the process group in a forked process",
                    "start processes with torchrun, or with the start method `spawn`",
                )
            _OF_PARENT.append(_KNOWN.pop(key))
            known = None
        if known is not None and known.group is _default_group():
            if known.saver is not None:
                # It uses the ranks until it has copied.
                known.saver.wait_copied()
            return known
        if known is not None and known.saver is not None:
            known.saver.end()
        if numbers is None:
            gang = Gang.solo(timeout)
        else:
            group = _gloo_group(numbers, process_group is None, timeout)
            inbox = Inbox()
            transport = GroupTransport(group, inbox)
            _TRANSPORTS.append(transport)
            gang = Gang.connect(transport, inbox, numbers.index(_world_rank()), len(numbers), timeout)
        _KNOWN[key] = Ranks(gang, _default_group())
        return _KNOWN[key]


def known_ranks() -> list[Ranks]:
    """All ranks of this process that have met."""
    return [known for known in _KNOWN.values() if known.process == os.getpid()]


def _is_in_use() -> bool:
    # Importing torch takes seconds; a program that uses its processes has done so.
    import sys

    if "torch" not in sys.modules:
        return False
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized()


def _default_group() -> Any:
    if not _is_in_use():
        return None
    import torch.distributed as dist

    return dist.group.WORLD


def _world_rank() -> int:
    import torch.distributed as dist

    return dist.get_rank()


def _numbers_of(process_group: dist.ProcessGroup | None) -> tuple[int, ...] | None:
    if not _is_in_use():
        if process_group is not None:
            raise UserError("cannot use a process group", "call `torch.distributed.init_process_group` first")
        return None
    import torch.distributed as dist

    ranks = tuple(dist.get_process_group_ranks(process_group or dist.group.WORLD))
    if dist.get_rank() not in ranks:
        raise UserError(f"rank {dist.get_rank()} is not in the process group of ranks {list(ranks)}",
                        "call this on ranks of the group only")  # fmt: skip
    return ranks


def _gloo_group(ranks: tuple[int, ...], is_default: bool, timeout: float) -> Any:
    import torch.distributed as dist

    # Only the ranks of a smaller group call this, so that they alone can form it.
    return dist.new_group(
        None if is_default else list(ranks),
        timeout=timedelta(seconds=timeout),
        backend="gloo",
        use_local_synchronization=not is_default,
    )
