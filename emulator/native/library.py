"""Loads the native kernels and tells XLA of them, once in a process."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.metadata
import importlib.util
import logging
import os
import sys
import sysconfig
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from emulator.handler_errors import raise_error_of_handler
from emulator.processor import own_processors, processor

NATIVE_VARIABLE = "EMULATOR_NATIVE"
"""``0`` in the environment leaves the native kernels out."""

CALLS = "emulator_"
"""The names begin with this by which XLA knows the native kernels."""

_LEAST_OF_A_SHARE = 1_000_000
"""Operations of one thread's share, at least: to wake a thread takes microseconds."""

_LOG = logging.getLogger(__name__)

_ONEDNN = "onednn-cpu-gomp"
"""The package that holds oneDNN's library."""

_FAMILIES = ("Convolution", "Product", "Recurrence")
"""The names of a family's functions begin with these. XLA knows a family by :data:`CALLS` and the
name in small letters."""

_WANTED_ISA = frozenset({"avx2", "fma"})
"""oneDNN has generated kernels for processors with these extensions, and slow ones for others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """The kernels, loaded.

    Args:
        functions: The library's functions.
        version: oneDNN's version and a digest of the kernels: what an executable that calls them
            depends on.
    """

    functions: ctypes.CDLL
    version: str

    def scratch(self, function: str, *arguments: int | Sequence[int]) -> int | None:
        """Bytes of scratch memory that a call wants.

        Args:
            function: The library's function that says so.
            arguments: Its arguments: numbers, and arrays of numbers.

        Returns:
            None where oneDNN has no kernel for the call.
        """
        arrays = [np.asarray(a, np.int64) for a in arguments if not isinstance(a, int)]
        rest = iter(arrays)
        converted: list[Any] = [
            ctypes.c_int64(a) if isinstance(a, int) else next(rest).ctypes.data_as(ctypes.c_void_p)
            for a in arguments
        ]
        ask = getattr(self.functions, function)
        ask.restype = ctypes.c_int64
        size: int = ask(*converted)
        return None if size < 0 else size


_WANTED: ContextVar[bool] = ContextVar("native kernels", default=True)
_LEFT_OUT = threading.Event()
"""Whether this process leaves the native kernels out."""


@contextmanager
def without_native() -> Generator[None, None, None]:
    """While active, what this thread lowers calls no native kernel.

    Example:
        >>> with without_native():
        ...     print(native_library())
        None
    """
    before = _WANTED.set(False)
    try:
        yield
    finally:
        _WANTED.reset(before)


def leave_native_out(out: bool = True) -> None:
    """Call no native kernel in this process from now on.

    Args:
        out: False to call them again.
    """
    if out:
        _LEFT_OUT.set()
    else:
        _LEFT_OUT.clear()


def native_library() -> Library | None:
    """The native kernels; None where they cannot or shall not be used.

    Returns:
        None where ``EMULATOR_NATIVE=0`` is set, under :func:`without_native`, on other systems than
        Linux for x86-64, on processors without AVX2, where jax leaves the CPU out, and, with one
        line in the log, where the kernels were not built, or from other sources or for another
        jax, or oneDNN is not installed.
    """
    return _load() if _is_wanted() else None


def _is_wanted() -> bool:
    left_out = os.environ.get(NATIVE_VARIABLE, "").strip() == "0"
    return _WANTED.get() and not _LEFT_OUT.is_set() and not left_out


def native_version() -> str:
    """Which oneDNN the native kernels would use; they are not loaded.

    Returns:
        Its version; empty where :func:`native_library` gives None without asking for it.
    """
    if not _is_wanted() or sys.platform != "linux":
        return ""
    try:
        return importlib.metadata.version(_ONEDNN)
    except importlib.metadata.PackageNotFoundError:
        return ""


@functools.cache
def _load() -> Library | None:
    if sys.platform != "linux" or not set(processor().isa) >= _WANTED_ISA:
        return None
    try:
        # jax takes types of the FFI only once the CPU's backend is there.
        jax.local_devices(backend="cpu")
    except RuntimeError as error:
        raise_error_of_handler(error)
        return None
    try:
        _load_openmp()
        # The kernels' library names oneDNN's, and finds it because it is loaded already.
        ctypes.CDLL(str(_path_of_onednn()))
        path = _path_of_kernels()
        functions = ctypes.CDLL(str(path))
        _check_sources(functions)
        version = importlib.metadata.version(_ONEDNN)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        for family in _FAMILIES:
            _register(functions, family)
    except (OSError, LookupError, AttributeError, RuntimeError) as error:
        raise_error_of_handler(error)
        _LOG.warning("native kernels are left out, XLA's own are used: %s", error)
        return None
    return Library(functions=functions, version=f"oneDNN {version}, kernels {digest}")


def _load_openmp() -> None:
    """Load the system's OpenMP, or that of torch's package where the system has none."""
    try:
        ctypes.CDLL("libgomp.so.1")
        return
    except OSError:
        torch = importlib.util.find_spec("torch")  # looked up, not imported
        if torch is None or torch.origin is None:
            raise
    ctypes.CDLL(str(Path(torch.origin).parent / "lib" / "libgomp.so.1"))


def _path_of_onednn() -> Path:
    try:
        files = importlib.metadata.files(_ONEDNN) or []
    except importlib.metadata.PackageNotFoundError as error:
        raise LookupError(f"the package {_ONEDNN} is not installed") from error
    for file in files:
        if file.name == "libdnnl.so.3":
            return Path(str(file.locate()))
    raise LookupError(f"the package {_ONEDNN} has no libdnnl.so.3")


def _path_of_kernels() -> Path:
    path = Path(__file__).with_name(f"_kernels{sysconfig.get_config_var('EXT_SUFFIX')}")
    if not path.is_file():
        raise LookupError(f"{path.name} was not built when the package was installed")
    return path


def _check_sources(functions: ctypes.CDLL) -> None:
    """Refuse kernels that were built from other sources: they would be called wrongly."""
    built_from = functions.kernels_sources
    built_from.restype = ctypes.c_uint64
    built: int = built_from()
    if built and built != _digest_of_sources():
        raise LookupError("they were built from other sources; install this package again")


def _digest_of_sources() -> int:
    """What ``setup.py`` tells the kernels of their sources."""
    folder = Path(__file__).with_name("src")
    data = b"".join(path.read_bytes() for path in sorted(folder.glob("*.[ch]*")))
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "little")


def _register(functions: ctypes.CDLL, family: str) -> None:
    name = f"{CALLS}{family.lower()}"
    identity = _capsule(functions, f"{family}TypeId")
    about = _capsule(functions, f"{family}TypeInfo")
    jax.ffi.register_ffi_type(name, {"type_id": identity, "type_info": about}, platform="cpu")
    stages = {
        "instantiate": jax.ffi.pycapsule(getattr(functions, f"{family}Instantiate")),
        "execute": jax.ffi.pycapsule(getattr(functions, f"{family}Execute")),
    }
    jax.ffi.register_ffi_target(name, stages, platform="cpu")


def _capsule(functions: ctypes.CDLL, name: str) -> Any:
    """What a function without arguments points to, in the form that jax takes."""
    get = getattr(functions, name)
    get.restype = ctypes.c_void_p
    new = ctypes.pythonapi.PyCapsule_New
    new.restype = ctypes.py_object
    new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new(get(), None, None)


def threads() -> int:
    """Threads that XLA computes with in this process: among so many a call is divided."""
    setting = os.environ.get("NPROC", "").strip()
    if setting.isdigit() and int(setting) > 0:
        return int(setting)
    return len(own_processors())


def shares_of(operations: int) -> int:
    """Among how many threads a call is divided.

    Args:
        operations: Floating point operations of the call.

    Example:
        >>> shares_of(1000)
        1
    """
    return min(threads(), max(operations // _LEAST_OF_A_SHARE, 1))
