"""Several learners side by side in one process, on one CUDA device, each with the bits that it has alone.

A small model fills a small part of a device, and most of the time its host waits. Each learner has a thread, a stream and
recordings of its own. One thread at a time has the turn, and hands it on where it would wait for the device: what belongs to the
whole process (torch's settings, generators, recording) is never touched by two of them at once.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from cop2l.kernel.learning import exact_arithmetic

# Read when CUDA starts; with its 8, streams share queues.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
_of_thread = threading.local()


class Turns:
    """Who has the turn: threads get it in the order in which they asked."""

    def __init__(self) -> None:
        self._lock, self._taken = threading.Lock(), False
        self._waiting: deque[Any] = deque()
        self.over = False
        """Whether all are to stop."""

    def take(self) -> None:
        """Wait for the turn; from here on it is held, even if an interruption comes with it."""
        gate = None
        with self._lock:
            if self._taken:
                gate = threading.Lock()
                gate.acquire()
                self._waiting.append(gate)
            self._taken = True
        if gate is not None:
            gate.acquire()
        self.check()

    def give(self) -> None:
        """The next one has the turn."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._taken = False

    def hand_on(self) -> bool:
        """Let all who wait have the turn once; False if nobody does."""
        self.check()
        if not self._waiting:
            return False
        self.give()
        self.take()
        return True

    def check(self) -> None:
        """Stop here if all are to stop."""
        if self.over:
            raise KeyboardInterrupt


def wait(event: Any) -> None:
    """Until the device has come to this event; meanwhile others have the turn."""
    turns: Turns | None = getattr(_of_thread, "turns", None)
    while turns is not None and not event.query() and turns.hand_on():
        pass
    event.synchronize()


@contextmanager
def aside() -> Iterator[None]:
    """Inside, others have the turn: for long work on the host that touches nothing that they share."""
    turns: Turns | None = getattr(_of_thread, "turns", None)
    if turns is None:
        yield
        return
    turns.give()
    try:
        yield
    finally:
        turns.take()


def side_by_side(works: Sequence[Callable[[], Any]], device: torch.device) -> list[Any]:
    """What each of these returns, or the exception that ended it; an interruption stops all of them, and is raised."""
    turns, ends = Turns(), list[Any]([None] * len(works))

    def begin(number: int, work: Callable[[], Any]) -> None:
        _of_thread.turns = turns
        try:
            turns.take()
            with _stream(device):
                ends[number] = work()
        except BaseException as error:
            ends[number] = error
        finally:
            turns.give()

    threads = [threading.Thread(target=begin, args=one, name=f"learner {one[0]}") for one in enumerate(works)]
    with exact_arithmetic(torch.get_num_threads()):  # theirs begin and end inside
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        except BaseException:
            turns.over = True
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
            raise
    return ends


@contextmanager
def _stream(device: torch.device) -> Iterator[None]:
    """A stream of one's own; those with this priority are no one else's."""
    if device.type != "cuda":
        yield
        return
    made: Any = torch.cuda.Stream
    stream = made(device, priority=-1)
    with torch.cuda.device(device), torch.cuda.stream(stream):
        yield
        stream.synchronize()
