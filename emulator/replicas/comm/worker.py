"""The communication thread: does one thing after the other, in the order they are handed to it."""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections.abc import Callable, Sequence

from emulator.held_signals import HELD
from emulator.replicas.comm.errors import CollectiveTimeout, DataParallelError, StepAbandoned

_LOOK_SECONDS = 0.2
"""Seconds between two looks, while waiting, whether the job has failed elsewhere."""


class Work:
    """Something handed to the thread.

    Args:
        name: What it is, for errors.
        do: The work itself.
    """

    __slots__ = ("_done", "do", "error", "name")

    def __init__(self, name: str, do: Callable[[], object]) -> None:
        self.name, self.do = name, do
        self.error: BaseException | None = None
        self._done = threading.Event()

    def done(self) -> bool:
        """Whether it is finished, well or not."""
        return self._done.is_set()

    def end(self) -> None:
        """Note that it is finished, and let go of what it held on to."""
        self.do = _nothing
        self._done.set()


class CommThread:
    """A daemon thread with a queue. The first failure is final: what follows is not tried.

    Args:
        name: Name of the thread.
        deadline: Seconds after which waiting is given up, beside the deadlines that the
            engine applies itself.
        alarm: Called now and then while somebody waits, with the name of the work; raises if the
            job has failed elsewhere.
    """

    def __init__(
        self, name: str, *, deadline: float, alarm: Callable[[str], None] = lambda _: None
    ) -> None:
        self.deadline, self.alarm = deadline, alarm
        self._queue: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._failed: list[Work] = []
        self._thread = threading.Thread(
            target=_work, args=(self._queue, self._changed, self._failed), name=name, daemon=True
        )
        self._thread.start()
        # The thread holds no reference to this object, so it ends when the object is forgotten.
        weakref.finalize(self, self._queue.put, None)

    def submit(self, name: str, do: Callable[[], object]) -> Work:
        """Hand over work; it starts when everything before it is done.

        Args:
            name: What it is, for errors.
            do: The work.

        Returns:
            What :meth:`wait` takes.
        """
        work = Work(name, do)
        self._queue.put(work)
        return work

    def wait(self, works: Sequence[Work]) -> None:
        """Return when one of the works is done.

        Args:
            works: What to wait for.

        Raises:
            DataParallelError: If it failed, nothing is done before the deadline, or the alarm
                says that there is nothing to wait for.
            StepAbandoned: If signals are held back meanwhile, and one came twice.
        """
        until = time.monotonic() + self.deadline + 2 * _LOOK_SECONDS
        with self._changed:
            while not any(work.done() for work in works):
                if not self._changed.wait(_LOOK_SECONDS):
                    if number := HELD.insisted():
                        HELD.obeyed(number)
                        raise StepAbandoned(operation=works[0].name, signal=number)
                    self.alarm(works[0].name)
                    if time.monotonic() > until:
                        raise CollectiveTimeout(operation=works[0].name, seconds=self.deadline)
        for work in works:
            if work.done() and work.error is not None:
                raise work.error

    def finish(self, works: Sequence[Work]) -> None:
        """Return when all of the works are done; raise what the first failure raised."""
        for work in works:
            self.wait((work,))

    def close(self, seconds: float = 0.0) -> bool:
        """End the thread when it has done what it has.

        Args:
            seconds: How long to wait for that.

        Returns:
            Whether it has ended.
        """
        self._queue.put(None)
        self._thread.join(seconds)
        return not self._thread.is_alive()


def _work(
    todo: queue.SimpleQueue[Work | None], changed: threading.Condition, failed: list[Work]
) -> None:
    while (work := todo.get()) is not None:
        try:
            if failed:
                raise DataParallelError(
                    f"{work.name}: not tried, because {failed[0].name} failed before it"
                )
            work.do()
        except BaseException as error:
            work.error = error
            if not failed:
                failed.append(work)
        work.end()
        with changed:
            changed.notify_all()
        work = None


def _nothing() -> None:
    """Nothing is left to do when work is done."""
