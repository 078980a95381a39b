"""Start of jax's device, without what jax tells on that occasion; and forks while it is open.

Programs run where jax by itself does: on a GPU if it finds one, else on the CPU. ``JAX_PLATFORMS``
says otherwise (docs/devices.md). Replicas of one host take a device each: :func:`prefer_device`.

Two lines of jax do not concern users of this project: that there is no TPU, and that a process
forks while jax's threads run. The second is right where the child goes on with jax; the workers of
torch's ``DataLoader`` load data and never do. All other forks are still warned of, and a child that
asks for a device is refused.

A forked child has jax's memory and none of its threads, so whatever it asks of jax never ends. What
may be asked for there is told of the fork, and refuses from then on; a process that opens no device
is not watched, and a child that asks for nothing never notices.
"""

from __future__ import annotations

import ctypes
import inspect
import logging
import os
import warnings
import weakref
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Protocol, cast

import jax
from jax._src import xla_bridge  # what jax does before a fork, and which clients there are
from jax._src.interpreters import mlir

from emulator.errors import DeviceError, ForkedProcess

HOST_PLATFORMS = frozenset({"cpu"})
"""Platforms of jax whose arrays lie where the host can read and write them."""

_PLATFORMS = "JAX_PLATFORMS"


class _Preference:
    """Which device this process takes.

    Attributes:
        number: Its number among those that it sees, counted round.
    """

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 0


_PREFERENCE = _Preference()
_LOADERS = ("torch.utils.data.", "torchdata.")
"""Packages that fork workers which load data."""


class NoDevice(DeviceError):
    """jax has none of the devices that it was asked for."""

    def __init__(self, *, wanted: str, reason: str) -> None:
        self.wanted, self.reason = wanted, reason
        setting = f"{_PLATFORMS}={wanted}" if wanted else f"{_PLATFORMS} not set"
        super().__init__(
            f"jax found no device to run on ({setting}): {reason}. Set {_PLATFORMS}=cpu to run on "
            "the CPU; a GPU needs NVIDIA's driver and `pip install 'sambaflow-emulator[cuda]'`."
        )


def prefer_device(number: int) -> None:
    """Choose among this host's devices, for devices that are opened from now on.

    Args:
        number: Number of this replica among those of its host. Replicas take devices in turn; a
            process that sees one device only takes that.

    Example:
        >>> prefer_device(0)
    """
    _PREFERENCE.number = number


def device_number(count: int) -> int:
    """The number of this process's device among some.

    Args:
        count: How many devices this process sees.
    """
    return _PREFERENCE.number % count


def first_device() -> Any:
    """The device that programs run on; starts jax if nothing has started it yet.

    Raises:
        ForkedProcess: In a process that was forked while a device was open.
        NoDevice: If jax has none of the platforms that it was asked for.

    Example:
        >>> first_device().id
        0
    """
    devices = _local_devices()
    return devices[device_number(len(devices))]


def chips_from_first(count: int) -> list[Any]:
    """Some of this process's devices, or as many as there are; starts jax if nothing has yet.

    Where jax is not started and runs on the CPU, it makes that many of the host.

    Args:
        count: How many are wanted. Replicas on one host that see the same devices take the next
            ones each.

    Raises:
        ForkedProcess: In a process that was forked while a device was open.
        NoDevice: If jax has none of the platforms that it was asked for.

    Example:
        >>> [device.id for device in chips_from_first(1)]
        [0]
    """
    make_host_devices(count)
    devices = _local_devices()
    start = _PREFERENCE.number * count % len(devices)
    return devices[start : start + count] if start + count <= len(devices) else devices[:count]


def make_host_devices(count: int) -> None:
    """Let the host be several devices when jax starts, unless it has or somebody has said how many.

    Args:
        count: How many; 1 changes nothing.

    Example:
        >>> make_host_devices(1)
    """
    if count == 1 or xla_bridge.backends_are_initialized():
        return
    config = cast("Any", jax.config)
    is_set = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if not is_set and config.jax_num_cpu_devices < 1:
        config.update("jax_num_cpu_devices", count)


def _local_devices() -> list[Any]:
    refuse_in_child("opening a device")
    watch_forks()
    with _quiet_start():
        try:
            return cast("Any", jax).local_devices()  # jax types it in part
        except (RuntimeError, AssertionError) as error:  # jax asserts that it has found some
            platforms = os.environ.get(_PLATFORMS, "")
            reason = str(error).rstrip(".") or "there is none of that platform"
            raise NoDevice(wanted=platforms, reason=reason) from error


@contextmanager
def _quiet_start() -> Generator[None, None, None]:
    """While active, jax names no TPU and registers a warning of forks that leaves loaders alone."""
    names = xla_bridge.__dict__
    before = names["_at_fork"]
    log = logging.getLogger(xla_bridge.__name__)

    log.addFilter(_names_no_tpu)
    names["_at_fork"] = _warn_of_fork
    try:
        yield
    finally:
        names["_at_fork"] = before
        log.removeFilter(_names_no_tpu)


def _warn_of_fork() -> None:
    """What jax does before a fork, except for loaders."""
    if not _in_loader():
        warnings.warn(
            "os.fork() was called while jax's threads run: a child that goes on with jax is likely "
            "to wait forever.",
            RuntimeWarning,
            stacklevel=2,
        )


def _names_no_tpu(record: logging.LogRecord) -> bool:
    return "tpu" not in record.getMessage().lower()


def _in_loader() -> bool:
    """Whether a loader of torch's is starting a worker."""
    frame = inspect.currentframe()
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith(_LOADERS):
            return True
        frame = frame.f_back
    return False


class Forkable(Protocol):
    """What does not work in a forked child."""

    def forked(self) -> None:
        """Called in the child before anything else runs there: refuse from now on."""
        ...


class _Process:
    """What forks need to know of this process.

    Attributes:
        opened_in: The process that has opened a device: this one, or one that it was forked from;
            0 if none has.
        is_child: Whether it was forked from that one.
    """

    __slots__ = ("is_child", "opened_in")

    def __init__(self) -> None:
        self.opened_in, self.is_child = 0, False


_PROCESS = _Process()
_watched: weakref.WeakSet[Forkable] = weakref.WeakSet()


def watch_forks(*items: Forkable) -> None:
    """Tell forked children of this process that they are some.

    Args:
        items: What to tell; none of them is kept alive.
    """
    if not _PROCESS.opened_in:
        _PROCESS.opened_in = os.getpid()
        os.register_at_fork(after_in_child=_in_child)
    for item in items:
        _watched.add(item)


def refuse_in_child(operation: str) -> None:
    """Raise in a process that was forked while a device was open.

    Args:
        operation: What was asked for.

    Raises:
        ForkedProcess: There.
    """
    if _PROCESS.is_child:
        raise ForkedProcess(operation=operation, parent=_PROCESS.opened_in)


def _in_child() -> None:
    _PROCESS.is_child = True
    items = list(_watched)
    clients: list[object] = list(xla_bridge.__dict__["_backends"].values())
    for thing in (*clients, mlir.global_thread_pool, *items):
        # It stays as it is: its end in the child would wait for the parent's threads, or crash.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
    for item in items:
        item.forked()
