"""Several learners side by side in one process, on one CUDA device, each with the bits that it has alone.

A small model fills a small part of a device, and most of the time its host waits. Each learner has a thread, a stream and
recordings of its own. One thread at a time has the turn, and hands it on where it would wait for the device: what belongs to the
whole process (torch's settings, generators, recording) is never touched by two of them at once. To wake a thread takes as long as
an iteration: one of them makes the iterations of all, each on its learner's stream, while the others sleep.
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
STRETCH = 4
"""How many iterations of a learner are made before others are looked at."""
_of_thread = threading.local()


class Loop:
    """Iterations of a learner, which any thread can make: they yield an event wherever they would wait for the device."""

    def __init__(self, steps: Iterator[Any]) -> None:
        self.event: Any = None
        self._steps, self.ended = steps, False
        started: Any = torch.cuda.is_initialized
        self.stream: Any = torch.cuda.current_stream() if started() else None
        self.gate = threading.Lock()
        self.gate.acquire()
        self.end: Any = None
        """What the iterations returned, or raised."""

    def ready(self) -> bool:
        """Whether the device has come to where it would wait."""
        return self.event is None or self.event.query()

    def go_on(self) -> None:
        """To where it would wait again, or a little further."""
        torch.cuda.set_stream(self.stream)
        try:
            for _ in range(STRETCH):
                self.event = next(self._steps)
                if not self.event.query():
                    break
        except StopIteration as end:
            self.ended, self.end = True, end.value
        except BaseException as error:
            self.ended, self.end = True, error


class Turns:
    """Who has the turn: threads get it in the order in which they asked."""

    def __init__(self, learners: int) -> None:
        self.learners = learners
        self._lock, self._taken = threading.Lock(), False
        self._waiting: deque[Any] = deque()
        self._loops: deque[Loop] = deque()
        self.over = False
        """Whether all are to stop."""

    def take(self, *, soon: bool = False) -> None:
        """Wait for the turn, or `soon` for the very next; from here on it is held, even if an interruption comes with it."""
        gate = None
        with self._lock:
            if self._taken:
                gate = threading.Lock()
                gate.acquire()
                self._waiting.insert(0 if soon else len(self._waiting), gate)
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

    def hand_on(self, *, soon: bool = False) -> bool:
        """Let all who wait have the turn once, or one of them if it is to come back `soon`; False if nobody waits."""
        self.check()
        if not self._waiting:
            return False
        self.give()
        self.take(soon=soon)
        return True

    def pause(self) -> None:
        """Let the iterations of others go on, if there are any: else their device stands still."""
        if self._loops:
            self.hand_on()

    def finish(self, loop: Loop) -> None:
        """Until this loop has ended; if no other thread makes the iterations of all, this one does."""
        self._loops.append(loop)
        if len(self._loops) > 1:
            self.give()
            loop.gate.acquire()
        if loop.ended:
            return
        try:
            while not self._go_on(loop).ended:
                self.hand_on(soon=True)
        finally:
            torch.cuda.set_stream(loop.stream)
            if not loop.ended:
                self._loops.remove(loop)
            if self._loops:  # the next thread makes them from now on
                self._waiting.append(self._loops[0].gate)

    def _go_on(self, mine: Loop) -> Loop:
        """Go on with all loops that are ready; the threads of those that end have the turn next."""
        ready = [loop for loop in self._loops if loop.ready()]
        if not ready and not self._waiting:
            self._loops.rotate()
            self._loops[0].event.synchronize()
            ready = [self._loops[0]]
        for loop in ready:
            self.check()  # before each: one that never waits for a device goes on to its end
            loop.go_on()
            if loop.ended:
                self._loops.remove(loop)
                if loop is not mine:
                    self._waiting.append(loop.gate)
        return mine

    def check(self) -> None:
        """Stop here if all are to stop."""
        if self.over:
            raise KeyboardInterrupt


def wait(event: Any) -> None:
    """Until the device has come to this event, if there is one; meanwhile others have the turn."""
    if event is None:
        return
    turns: Turns | None = getattr(_of_thread, "turns", None)
    while turns is not None and not event.query() and turns.hand_on():
        pass
    event.synchronize()


def finished(steps: Iterator[Any]) -> Any:
    """What these iterations return; they yield an event wherever they would wait for the device."""
    turns: Turns | None = getattr(_of_thread, "turns", None)
    if turns is None:
        while True:
            try:
                next(steps).synchronize()
            except StopIteration as end:
                return end.value
    loop = Loop(steps)
    turns.finish(loop)
    if isinstance(loop.end, BaseException):
        raise loop.end
    return loop.end


def learners() -> int:
    """How many are side by side."""
    turns: Turns | None = getattr(_of_thread, "turns", None)
    return 1 if turns is None else turns.learners


def pause() -> None:
    """Others have the turn, if their iterations go on: where nothing that is shared is in use."""
    turns: Turns | None = getattr(_of_thread, "turns", None)
    if turns is not None:
        turns.pause()


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
    turns, ends = Turns(len(works)), list[Any]([None] * len(works))

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
