"""SambaLoader: batches fetched, converted and named by a thread while the device runs."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from samba.errors import ArgumentError, SambaError, described
from samba.nn.conversion import from_named_dict
from samba.support.given import as_number, callable_of, flag_of, names_of, whole_of

__all__ = ["DataLoaderException", "SambaLoader"]

_GRACE_SECONDS = 1.0
"""Seconds that a closed epoch waits for its thread, which may be inside the data loader."""

_log = logging.getLogger("samba")


class DataLoaderException(SambaError, RuntimeError):
    """A batch could not be loaded; the data loader's own error, if there is one, is the cause.

    Args:
        batch: Number of the batch in its epoch, counted from 0.
        problem: What happened, as a sentence.
        hint: What to do.
    """

    def __init__(self, *, batch: int, problem: str, hint: str) -> None:
        self.batch, self.problem, self.hint = batch, problem, hint
        super().__init__(f"SambaLoader, batch {batch}: {problem}. {hint}")


def _same(batch: Any) -> Any:
    return batch


class SambaLoader:
    """Wraps a data loader: its batches come as SambaTensors with the names given.

    Every epoch has a thread that fetches ahead. It ends with the epoch, when the loop is left
    early, and when nobody holds the iterator any more.

    Args:
        dataloader: Gives batches: lists or tuples of tensors, or dicts that have the names as
            keys. Usually a ``torch.utils.data.DataLoader``.
        names: Names of the tensors of a batch on the device.
        maxsize: How many batches may wait to be taken.
        function_hook: Makes from a batch what is to be converted: a tensor, an array or None
            for each name; a single tensor is enough for a single name. It runs in the thread.
        return_original_batch: Whether a batch comes as ``(tensors, batch as it was loaded)``.
            With one name, ``tensors`` is the tensor itself.
        ignore_dataloader_exception: Whether a batch that fails is left out with a warning in the
            log. A loader that has no length cannot be asked again after it failed: its epoch
            ends then. Batches that do not fit ``names`` and late batches are errors all the same.
        timeout: Seconds to wait for a batch.
        torch_loader: An older name of ``dataloader``.

    Raises:
        ArgumentError: An argument is out of range.

    Example:
        >>> loader = SambaLoader([(torch.zeros(2, 3), torch.ones(2))], ["image", "label"])
        >>> [[t.sn_name for t in batch] for batch in loader], len(loader)
        ([['image', 'label']], 1)
    """

    def __init__(
        self,
        dataloader: Iterable[Any] | None = None,
        names: Sequence[str] = (),
        maxsize: int = 10,
        function_hook: Callable[[Any], Any] = _same,
        return_original_batch: bool = False,
        ignore_dataloader_exception: bool = False,
        timeout: float = 900,
        *,
        torch_loader: Iterable[Any] | None = None,
    ) -> None:
        self.dataloader = _one_loader(dataloader, torch_loader)
        self.names = _checked_names(names)
        self.maxsize = whole_of(maxsize, "SambaLoader(maxsize)", 1, "1 batch or more")
        self.function_hook = callable_of(
            function_hook, "SambaLoader(function_hook)", "a function of a batch"
        )
        self.return_original_batch = flag_of(
            return_original_batch, "SambaLoader(return_original_batch)"
        )
        self.ignore_dataloader_exception = flag_of(
            ignore_dataloader_exception, "SambaLoader(ignore_dataloader_exception)"
        )
        self.timeout = as_number(timeout)
        self._current: Iterator[Any] | None = None
        if not self.timeout > 0:
            raise ArgumentError(
                where="SambaLoader(timeout)", found=described(timeout), wanted="more than 0 seconds"
            )

    def __len__(self) -> int:
        """Batches in an epoch, as the data loader says.

        Raises:
            TypeError: The data loader has no length.
        """
        return len(self.dataloader)  # pyright: ignore[reportArgumentType]  # the caller asks for it

    def __iter__(self) -> Iterator[Any]:
        """Starts an epoch."""
        return Epoch(self)

    def __next__(self) -> Any:
        """Takes the next batch of an epoch of its own; after its end, a new one starts."""
        if self._current is None:
            self._current = iter(self)
        try:
            return next(self._current)
        except BaseException:
            self._current = None
            raise


class Epoch(Iterator[Any]):
    """One pass over a data loader.

    Args:
        loader: What to pass over, and how.
    """

    def __init__(self, loader: SambaLoader) -> None:
        self._timeout = loader.timeout
        self._taken = 0
        self._handover = _Handover(loader.maxsize)
        # The thread knows the handover and not this object, so that this one can be collected.
        thread = threading.Thread(
            target=_Producer(loader, self._handover).run, name="SambaLoader", daemon=True
        )
        self._finalizer = weakref.finalize(self, _end, self._handover, thread)
        thread.start()

    def close(self) -> None:
        """Ends the epoch; its thread stops as soon as the data loader lets it."""
        self._finalizer()

    def __next__(self) -> Any:
        try:
            batch = self._handover.take(self._timeout)
        except _Closed:
            self.close()
            raise StopIteration from None
        except _TimedOut:
            self.close()
            raise DataLoaderException(
                batch=self._taken,
                problem=f"the data loader gave nothing for {self._timeout:g} s",
                hint="Find out what it waits for, or allow more with SambaLoader(timeout=...).",
            ) from None
        except BaseException:
            self.close()
            raise
        self._taken += 1
        return batch


def _end(handover: _Handover, thread: threading.Thread) -> None:
    handover.close()
    if thread is not threading.current_thread() and thread.ident is not None:
        thread.join(_GRACE_SECONDS)


class _Producer:
    """Fetches, converts and hands over the batches of one epoch, in its own thread."""

    def __init__(self, loader: SambaLoader, handover: _Handover) -> None:
        self._dataloader = loader.dataloader
        self._names = loader.names
        self._hook = loader.function_hook
        self._with_original = loader.return_original_batch
        self._lenient = loader.ignore_dataloader_exception
        self._handover = handover

    def run(self) -> None:
        """Hands over every batch, then the end or the error; never raises."""
        try:
            self._produce()
        except BaseException as error:
            self._handover.fail(error)
        else:
            self._handover.finish()
        # What an error's traceback still refers to must not keep the data loader's workers.
        self._dataloader = ()

    def _produce(self) -> None:
        number, end = 0, object()
        try:
            batches = iter(self._dataloader)
        except Exception as error:
            raise _failed(number, error) from error
        length = _length(self._dataloader)
        try:
            while not self._handover.closed:
                loaded = False
                try:
                    batch = next(batches, end)
                    if batch is end:
                        return
                    loaded = True
                    hooked = self._hook(batch)
                except Exception as error:
                    if not self._lenient:
                        raise _failed(number, error) from error
                    _log.warning("%s It is left out.", _failed(number, error))
                    if not loaded and (length is None or number + 1 >= length):
                        return
                else:
                    self._hand_over(batch, self._tensors(hooked, number))
                number += 1
        finally:
            del batches

    def _hand_over(self, batch: Any, tensors: list[Any]) -> None:
        if not self._with_original:
            self._handover.put(tensors)
        elif len(tensors) == 1:
            self._handover.put((tensors[0], batch))
        else:
            self._handover.put((tensors, batch))

    def _tensors(self, hooked: Any, number: int) -> list[Any]:
        names = self._names
        if isinstance(hooked, Mapping):
            missing = [name for name in names if name not in hooked]
            if missing:
                raise _unfit(number, f"no {', '.join(missing)}", names)
            items = [hooked[name] for name in names]
        elif isinstance(hooked, torch.Tensor) or not hasattr(hooked, "__iter__"):
            items = [hooked]
        else:
            items = list(hooked)
        if len(items) != len(names):
            raise _unfit(number, f"{len(items)} item(s)", names)
        try:
            plain = [item if item is None else torch.as_tensor(item) for item in items]
        except (TypeError, ValueError, RuntimeError) as error:
            raise _unfit(number, f"what torch cannot take ({error})", names) from error
        return list(from_named_dict(dict(zip(names, plain, strict=True))).values())


def _length(dataloader: Any) -> int | None:
    try:
        return len(dataloader)
    except TypeError:  # what torch raises too, for a data set without a length
        return None


def _failed(number: int, error: Exception) -> DataLoaderException:
    return DataLoaderException(
        batch=number,
        problem=f"the data loader or function_hook failed with {type(error).__name__}: {error}",
        hint="Its traceback is above; ignore_dataloader_exception=True leaves such batches out.",
    )


def _unfit(number: int, found: str, names: Sequence[str]) -> DataLoaderException:
    return DataLoaderException(
        batch=number,
        problem=f"found {found}, expected one tensor for each of {', '.join(names)}",
        hint="Choose the items with function_hook, in the order of names.",
    )


def _one_loader(dataloader: Any, torch_loader: Any) -> Iterable[Any]:
    """The data loader, under the one name or the other."""
    if (dataloader is None) is (torch_loader is None):
        raise ArgumentError(
            where="SambaLoader(dataloader)",
            found="none" if dataloader is None else "dataloader and torch_loader",
            wanted="a data loader; torch_loader is another name of it",
        )
    return torch_loader if dataloader is None else dataloader


def _checked_names(names: Sequence[str]) -> tuple[str, ...]:
    where = "SambaLoader(names)"
    listed = names_of(names, where)
    if isinstance(names, str) or not all(listed):
        raise ArgumentError(
            where=where,
            found=described(names),
            wanted="a list of names, one for each tensor of a batch",
        )
    if not listed or len(set(listed)) != len(listed):
        raise ArgumentError(where=where, found=repr(listed), wanted="different names, 1 or more")
    return tuple(listed)


class _Closed(Exception):
    """There is nothing more to take."""


class _TimedOut(Exception):
    """Nothing came in time."""


class _Handover:
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
            _Closed: No item is left and none follows.
            _TimedOut: There was none in time.
            BaseException: What the producer failed with, after all its items, once.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            while not self._items and not self._finished and not self.closed:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise _TimedOut
                # A wait longer than this limit is an OverflowError.
                self._changed.wait(min(left, threading.TIMEOUT_MAX))
            if self._items:
                item = self._items.popleft()
                self._changed.notify_all()
                return item
            error, self._error = self._error, None
            if error is not None:
                raise error
            raise _Closed

    def close(self) -> None:
        """Ends it from the consumer's side: what waits is dropped, the producer told to stop."""
        with self._changed:
            self.closed = True
            self._items.clear()
            self._changed.notify_all()
