"""A bounded queue between one producing thread and one consumer that may go away."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any


class Closed(Exception):
    """There is nothing more to take."""


class TimedOut(Exception):
    """Nothing came in time."""


class Handover:
    """Items on their way from a producer to a consumer.

    Its lock may be taken again by the thread that holds it, because a garbage collection in
    the middle of any method may call :meth:`close`.

    Args:
        maxsize: How many items may wait; the producer waits while there are so many.
    """

    def __init__(self, maxsize: int) -> None:
        self._maxsize = maxsize
        self._items: deque[Any] = deque()
        self._changed = threading.Condition(threading.RLock())
        self._error: BaseException | None = None
        self._finished = False
        self.closed = False

    def put(self, item: Any) -> None:
        """Adds an item as soon as there is room; drops it if the consumer has gone."""
        with self._changed:
            while len(self._items) >= self._maxsize and not self.closed:
                self._changed.wait()
            if not self.closed:
                self._items.append(item)
                self._changed.notify_all()

    def finish(self) -> None:
        """Says that no item follows."""
        with self._changed:
            self._finished = True
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Says that no item follows, because of an error; the consumer gets it last."""
        with self._changed:
            self._error = error
            self.finish()

    def take(self, timeout: float) -> Any:
        """Takes the oldest item.

        Args:
            timeout: Seconds to wait for one.

        Raises:
            Closed: No item is left and none follows.
            TimedOut: There was none in time.
            BaseException: What the producer failed with, after all its items, once.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            while not self._items and not self._finished and not self.closed:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimedOut
                # A wait longer than this limit is an OverflowError.
                self._changed.wait(min(left, threading.TIMEOUT_MAX))
            if self._items:
                item = self._items.popleft()
                self._changed.notify_all()
                return item
            error, self._error = self._error, None
            if error is not None:
                raise error
            raise Closed

    def close(self) -> None:
        """Ends it from the consumer's side: what waits is dropped, the producer told to stop."""
        with self._changed:
            self.closed = True
            self._items.clear()
            self._changed.notify_all()
