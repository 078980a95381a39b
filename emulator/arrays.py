"""Arrays by name in ``.npz`` files: read with bounds and without unpickling, written as a whole."""

from __future__ import annotations

import errno
import io
import math
import os
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any

import numpy as np

from emulator.handler_errors import raise_error_of_handler
from pef_schema.atomic import write_atomically
from pef_schema.errors import PefUnwritable, SambaError, quoted

_CHUNK = 2**20
_DIRECTORY_BYTES = 16 * 2**20
"""Longest table of contents of a zip archive that is read: some 100,000 arrays."""

_PLAIN = "biufc"
_PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_SUFFIX = ".npy"

Fits = Callable[[str, tuple[int, ...], np.dtype], None]
"""Raises unless a program has a tensor of that name and shape; an array is read only then."""


class BadArrays(SambaError):
    """An ``.npz`` file cannot be used.

    Args:
        path: The file.
        reason: What was found.
        names: Names of the arrays that it may hold.
    """

    def __init__(self, *, path: str, reason: str, names: Sequence[str] = ()) -> None:
        self.path, self.reason, self.names = path, reason, tuple(names)
        super().__init__(f"{quoted(path, 1024)}: {reason}. Make it with {savez_call(names)}.")


class UnwritableOutput(SambaError):
    """The outputs cannot be written where ``--output`` says."""

    def __init__(self, *, path: str, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(
            f"--output {quoted(path, 1024)}: {reason}. Name an .npz file in a folder that exists "
            "and can be written."
        )


class _Damaged(Exception):
    """What is wrong with a file or with one of its arrays, as a part of a sentence."""


def savez_call(names: Sequence[str], path: str = "path") -> str:
    """The call of numpy that makes a file of arrays with these names.

    Example:
        >>> savez_call(["x", "y"]), savez_call(["a.b"])
        ('numpy.savez(path, x=..., y=...)', "numpy.savez(path, **{'a.b': ...})")
    """
    file = path if path == "path" else repr(path)
    keywords = ", ".join(f"{name}=..." for name in names) if names else "name=array, ..."
    if not all(name.isidentifier() for name in names):
        keywords = "**{" + ", ".join(f"{name!r}: ..." for name in names) + "}"
    return f"numpy.savez({file}, {keywords})"


def read_arrays(path: str, fits: Fits, names: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """Read an ``.npz`` file.

    An array's header is read first, and its data only if it fits: what is read is bounded by what
    the program takes, whatever the file claims. Nothing is unpickled.

    Args:
        path: The file.
        fits: Refuses an array by its name, shape and dtype.
        names: Names of the arrays that it may hold, for errors.

    Returns:
        Row-major arrays by name.

    Raises:
        BadArrays: If the file cannot be read, is damaged, holds no array, or something else.
    """
    try:
        with open(path, "rb", buffering=0, opener=_open) as raw:
            if not stat.S_ISREG(os.fstat(raw.fileno()).st_mode):
                raise _Damaged("it is not a regular file")
            with _Bounded(raw) as file:
                return _read_archive(file, fits)
    except FileNotFoundError:
        path = os.path.abspath(path)
        raise BadArrays(path=path, reason="there is no such file", names=names) from None
    except _Damaged as error:
        raise BadArrays(path=path, reason=str(error), names=names) from None
    except OSError as error:
        reason = f"it cannot be read ({error.strerror or error})"
        raise BadArrays(path=path, reason=reason, names=names) from None
    except ValueError as error:  # of open: a path that no system takes
        raise BadArrays(
            path=path, reason=f"it is not a valid path ({error})", names=names
        ) from None


def _open(path: str, flags: int) -> int:
    # Not waiting for the other end of a pipe.
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


class _Bounded(io.BufferedReader):
    """A file of which no single read takes much: zipfile takes its whole directory by one."""

    def read(self, size: int | None = -1, /) -> bytes:
        left = max(os.fstat(self.fileno()).st_size - self.tell(), 0)
        size = left if size is None or size < 0 else min(size, left)
        if size > _DIRECTORY_BYTES:
            raise _Damaged("not an .npz file of plain arrays (its table of contents is too long)")
        return super().read(size)


def _read_archive(file: _Bounded, fits: Fits) -> dict[str, np.ndarray]:
    if file.peek(6)[:6] == b"\x93NUMPY":
        shape, dtype, _ = _header(file, "the array")
        raise _Damaged(
            f"one array without a name, {list(shape)} {dtype}, expected an .npz of named ones"
        )
    arrays: dict[str, np.ndarray] = {}
    try:
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                name = member.filename.removesuffix(_SUFFIX)
                if name == member.filename:
                    raise _Damaged(f"it holds {quoted(name)}, which is not an array")
                if name in arrays:
                    raise _Damaged(f"it holds two arrays named {quoted(name)}")
                if member.flag_bits & 1 or member.compress_type not in _PACKED:
                    raise _Damaged(f"array {quoted(name)} has an encoding that numpy does not use")
                with archive.open(member) as stream:
                    arrays[name] = _read_array(stream, name, fits)
    except OSError as error:
        if error.errno != errno.EINVAL:  # of a place before the file's beginning
            raise
        raise _Damaged("not an .npz file of plain arrays (it is truncated)") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError) as error:
        raise _Damaged(f"not an .npz file of plain arrays ({error!s:.200})") from None
    if not arrays:
        raise _Damaged("it holds no array")
    return arrays


def _read_array(stream: IO[bytes], name: str, fits: Fits) -> np.ndarray:
    where = f"array {quoted(name)}"
    shape, dtype, fortran = _header(stream, where)
    fits(name, shape, dtype)
    data = np.empty(math.prod(shape) * dtype.itemsize, np.uint8)
    place = 0
    while part := stream.read(min(_CHUNK, data.size - place + 1)):
        if len(part) > data.size - place:
            raise _Damaged(f"{where} has more than the {data.size} bytes of its shape")
        data[place : place + len(part)] = np.frombuffer(part, np.uint8)
        place += len(part)
    if place < data.size:
        raise _Damaged(f"{where} ends after {place} of {data.size} bytes")
    array = data.view(dtype).reshape(shape, order="F" if fortran else "C")
    # The device's numbers are of this machine's byte order.
    return np.ascontiguousarray(array, dtype=dtype.newbyteorder("=")).reshape(shape)


def _header(stream: IO[bytes], where: str) -> tuple[tuple[int, ...], np.dtype, bool]:
    """Shape, dtype and whether columns come first."""
    try:
        version = np.lib.format.read_magic(stream)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }.get(version)
        if read is None:
            raise _Damaged(
                f"{where} has version {version} of the format, expected (1, 0) or (2, 0)"
            )
        shape, fortran, dtype = read(stream)
    except _Damaged:
        raise
    except Exception as error:  # numpy parses it as Python: whatever that raises
        raise_error_of_handler(error)
        first = str(error).split("\n", 1)[0]
        raise _Damaged(f"{where} has no header that NumPy can read ({first:.120})") from None
    if dtype.hasobject:
        raise _Damaged("not an .npz file of plain arrays (it holds Python objects)")
    is_bfloat16 = dtype.kind == "V" and dtype.itemsize == 2 and dtype.names is None
    if dtype.kind not in _PLAIN and not is_bfloat16:
        raise _Damaged(f"{where} is of {dtype!s:.80}, which is not a numeric type")
    if any(type(size) is not int or not 0 <= size < 2**63 for size in shape):
        raise _Damaged(f"{where} has shape {shape!s:.80}, expected sizes from 0 on")
    return shape, dtype, bool(fortran)


def check_output(path: str, others: Mapping[str, str | None]) -> None:
    """Refuse a path where no outputs can be written, before anything is computed.

    Args:
        path: Where the outputs go.
        others: What else the command line names, by its option: none of these is overwritten.

    Raises:
        UnwritableOutput: If it is a folder, or a device, or in no folder, or one of the others.
    """
    try:
        folder = os.path.dirname(os.path.abspath(path))
        if not os.path.isdir(folder):
            raise UnwritableOutput(path=path, reason="its folder does not exist")
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return
        if not stat.S_ISREG(status.st_mode):
            reason = (
                "it is a folder" if stat.S_ISDIR(status.st_mode) else "it is not a regular file"
            )
            raise UnwritableOutput(path=path, reason=reason)
        for option, other in others.items():
            if other and os.path.exists(other) and os.path.samestat(status, os.stat(other)):
                raise UnwritableOutput(path=path, reason=f"it is also the file of {option}")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UnwritableOutput(path=path, reason=reason) from None


def write_arrays(path: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Write an ``.npz`` file under the very name that is given; it is replaced as a whole.

    Args:
        path: The file.
        arrays: Arrays by name.

    Raises:
        UnwritableOutput: If it cannot be written; what was there is then untouched.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_arrays(f"{folder}/out", {"y": np.ones(2)})
        ...     np.load(f"{folder}/out")["y"].tolist()
        [1.0, 1.0]
    """
    bad = [name for name in arrays if "\0" in name]
    if bad:
        raise UnwritableOutput(
            path=path, reason=f"no archive holds an array named {quoted(bad[0])}"
        )
    try:
        write_atomically(path, _archive(arrays))
    except PefUnwritable as error:
        raise UnwritableOutput(path=path, reason=error.what) from None


class _Sink(io.RawIOBase):
    """Keeps what is written until it is taken."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def take(self) -> list[bytes]:
        parts, self._parts = self._parts, []
        return parts


def _archive(arrays: Mapping[str, np.ndarray]) -> Iterator[bytes]:
    """A zip archive as numpy makes it, piece by piece: outputs may be large."""
    sink = _Sink()
    with zipfile.ZipFile(sink, "w") as archive:
        for name, array in arrays.items():
            member = zipfile.ZipInfo(name + _SUFFIX, (1980, 1, 1, 0, 0, 0))
            with archive.open(member, "w", force_zip64=True) as stream:
                form = np.lib.format.header_data_from_array_1_0(np.ascontiguousarray(array))
                np.lib.format.write_array_header_1_0(stream, form | {"shape": array.shape})
                flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
                for start in range(0, len(flat), _CHUNK):
                    stream.write(flat[start : start + _CHUNK])
                    yield from sink.take()
    yield from sink.take()
