"""Executables of plans that outlive the process: what XLA made once is read the next time.

XLA's executables are keyed by all that they depend on: the plan in StableHLO, XLA's version and
options, and the processor. A cache that the user has set up in jax takes its place; jax's settings
are looked at and stay as they are.

One that calls native kernels is kept as others are: XLA asks for the kernels by name when it loads
it, and the kernels' version is part of the key.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import logging
import os
import platform
import stat
import sys
import tempfile
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import jax
import jaxlib.version
from jax._src.lib.mlir import passmanager  # pyright: ignore[reportPrivateImportUsage]  # as jax's own cache does

from emulator.counters import Source
from emulator.handler_errors import raise_error_of_handler
from emulator.native.library import CALLS, native_library

__all__ = ["CACHE_VARIABLE", "Executable", "KeptFiles", "compiled_or_kept", "xla_options"]

_LOG = logging.getLogger(__name__)

CACHE_VARIABLE = "EMULATOR_CACHE"
"""Environment variable with the folder for executables; 0 for none."""

_LIMIT = 1 << 30
"""Most bytes of executables that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Executable:
    """What XLA has made, now or once before.

    Args:
        compiled: A ``jax.stages.Compiled``.
        source: Where it is from.
        seconds: Time that it took to have it.
    """

    compiled: Any
    source: Source
    seconds: float


def compiled_or_kept(lowered: Any, options: dict[str, Any]) -> Executable:
    """Compile, or read what an earlier process compiled.

    Args:
        lowered: A ``jax.stages.Lowered``.
        options: XLA's options for it.

    Returns:
        The executable, and where it is from.
    """
    start = time.perf_counter()
    compiled, source = _compiled(lowered, options)
    return Executable(compiled=compiled, source=source, seconds=time.perf_counter() - start)


def _compiled(lowered: Any, options: dict[str, Any]) -> tuple[Any, Source]:
    lowering = lowered._lowering
    arguments = lowering.compile_args
    files, source = None, Source.UNKEPT
    # Functions of this process that an executable calls are not there in another one.
    if not (arguments["host_callbacks"] or arguments["keepalive"]):
        files, source = _files(), Source.NO_CACHE
    client = arguments["backend"]
    arguments["backend"] = ours = _Client(client, files, source)
    try:
        compiled = lowered.compile(compiler_options=options)
    finally:
        arguments["backend"] = client
    # What runs it knows the device's own client.
    compiled._executable._unloaded_executable.backend = client
    return compiled, ours.source


class _Client:
    """XLA's client, but for compiling.

    Args:
        client: XLA's.
        files: Where executables are kept; None where they are not.
        source: Where an executable that is not kept counts as being from.

    Attributes:
        source: Where the executable that was asked for last is from.
    """

    __slots__ = ("_client", "_files", "source")

    def __init__(
        self, client: Any, files: KeptFiles | None, source: Source = Source.COMPILED
    ) -> None:
        self._client, self._files, self.source = client, files, source

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def compile_and_load(
        self, module: Any, executable_devices: Any, compile_options: Any, **more: Any
    ) -> Any:
        if self._files is None:
            return self._client.compile_and_load(
                module,
                executable_devices=executable_devices,
                compile_options=compile_options,
                **more,
            )
        return self._made_or_kept(self._files, module, executable_devices, compile_options)

    def _made_or_kept(self, files: KeptFiles, module: Any, devices: Any, options: Any) -> Any:
        client = self._client
        key = _key(client, module, devices, options)
        kept = files.get(key)
        if kept is not None:
            try:
                found = client.deserialize_executable(zlib.decompress(kept), devices, options)
                self.source = Source.CACHE
                return found
            except Exception as error:
                raise_error_of_handler(error)
                # Whatever is wrong with it, compiling it anew is right.
                _LOG.info("an executable that was kept cannot be loaded: %s", error)
                files.drop(key)
        made = client.compile_and_load(module, executable_devices=devices, compile_options=options)
        self.source = Source.COMPILED
        try:
            data = zlib.compress(made.serialize(), 1)
        except Exception as error:  # a platform that cannot write executables out
            raise_error_of_handler(error)
            self.source = Source.UNKEPT
            _LOG.info("an executable cannot be kept: %s", error)
        else:
            files.put(key, data)
        return made


def _files() -> KeptFiles | None:
    """Where executables are kept; None where they are not, or where jax keeps them."""
    config = cast("Any", jax.config)
    if config.jax_compilation_cache_dir or not config.jax_enable_compilation_cache:
        return None
    wanted = os.environ.get(CACHE_VARIABLE, "").strip()
    if wanted == "0":
        return None
    folder = Path(wanted) if wanted else _users_folder()
    return None if folder is None else _opened(folder)


@functools.lru_cache(maxsize=8)
def _opened(folder: Path) -> KeptFiles:
    return KeptFiles(folder, limit=_LIMIT)


def _users_folder() -> Path | None:
    """The folder for executables in the user's cache directory; None where there is no home."""
    found = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(found)
    if not base.is_absolute():  # what is relative is to be ignored, says the XDG specification
        try:
            home = Path.home()
        except RuntimeError:
            return None
        base = home / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    return base / "sambaflow-emulator" / "executables"


def _key(client: Any, module: Any, devices: Any, options: Any) -> str:
    """A name for all that an executable depends on."""
    found = hashlib.sha256()
    code = _code(module)
    library = native_library() if CALLS.encode() in code else None
    for part in (
        code,
        b"" if library is None else library.version.encode(),
        options.SerializeAsString(),
        repr([(d.id, d.platform, d.device_kind) for d in devices]).encode(),
        f"{client.platform} {client.platform_version}".encode(),
        _machine(),
        os.environ.get("XLA_FLAGS", "").encode(),
    ):
        found.update(len(part).to_bytes(8, "little"))
        found.update(part)
    return found.hexdigest()


def _code(module: Any) -> bytes:
    """A module in bytes, without the places in source files that it came from."""
    with module.context:
        copy = module.operation.clone()
        passmanager.PassManager.parse("builtin.module(strip-debuginfo)").run(copy)
        written = io.BytesIO()
        copy.write_bytecode(file=written)
    return written.getvalue()


def _machine() -> bytes:
    """What XLA's code depends on besides its options: versions, processor, cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    parts = (jax.__version__, jaxlib.version.__version__, _processor(), str(cores))
    return "\n".join((*parts, os.environ.get("NPROC", ""))).encode()


@functools.cache
def _processor() -> str:
    """The processor with its features: code for another one must never be loaded."""
    wanted = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags", "Features")
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    first = text.partition("\n\n")[0].splitlines()
    known = [line for line in first if line.partition("\t")[0].partition(":")[0].strip() in wanted]
    return "\n".join((platform.machine(), platform.processor(), *known))


_MAGIC = b"sambaflow-emulator executable 1\n"
_DIGEST = hashlib.sha256().digest_size
_SUFFIX = ".exe"
_UNFINISHED = ".new"
_ABANDONED = 3600.0
"""Seconds after which a file that nobody finished is of a process that is gone."""


class KeptFiles:
    """Bytes by name, for this user alone.

    Nothing that goes wrong with the folder is an error: a file that cannot be read counts
    as missing, one that cannot be written is left out, and the first reason is logged.

    Args:
        folder: Where the files lie; made when the first one is written.
        limit: Most bytes of all files together.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     files = KeptFiles(Path(folder) / "kept", limit=1000)
        ...     files.put("a", b"what took long")
        ...     files.get("a"), files.get("b")
        (b'what took long', None)
    """

    __slots__ = ("_told", "folder", "limit")

    def __init__(self, folder: Path, *, limit: int) -> None:
        self.folder, self.limit = folder, limit
        self._told = False

    def get(self, name: str) -> bytes | None:
        """What was put under a name; None if nothing whole lies there.

        Args:
            name: Letters and digits.

        Returns:
            The bytes, and the file counts as used now.
        """
        path = self.folder / (name + _SUFFIX)
        try:
            if not self._is_ours():
                return None
            with path.open("rb") as file:
                _check_owner(os.fstat(file.fileno()), path)
                found = file.read(self.limit + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._tell(f"cannot read {path.name}", error)
            return None
        head, data = found[: len(_MAGIC) + _DIGEST], found[len(_MAGIC) + _DIGEST :]
        if head != _MAGIC + hashlib.sha256(data).digest():
            self.drop(name)
            return None
        with contextlib.suppress(OSError):  # on a disk that cannot be written, nothing goes either
            os.utime(path)
        return data

    def put(self, name: str, data: bytes) -> None:
        """Keep bytes under a name, in the place of what was there; all at once or not at all.

        Args:
            name: Letters and digits.
            data: The bytes; more than the limit are not kept.
        """
        size = len(_MAGIC) + _DIGEST + len(data)
        if size > self.limit:
            return
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._is_ours():
                return
            self._make_room(size)
            self._write(self.folder / (name + _SUFFIX), data)
        except OSError as error:
            self._tell("cannot keep executables", error)

    def drop(self, name: str) -> None:
        """Forget what lies under a name."""
        with contextlib.suppress(OSError):
            (self.folder / (name + _SUFFIX)).unlink(missing_ok=True)

    def _write(self, path: Path, data: bytes) -> None:
        handle, unfinished = tempfile.mkstemp(suffix=_UNFINISHED, dir=self.folder)  # mode 0600
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_MAGIC + hashlib.sha256(data).digest())
                file.write(data)
            Path(unfinished).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(unfinished).unlink(missing_ok=True)
            raise

    def _make_room(self, size: int) -> None:
        """Remove the least recently used until there are so many bytes below the limit."""
        found: list[tuple[float, int, Path]] = []
        for entry in os.scandir(self.folder):
            with contextlib.suppress(FileNotFoundError):  # another process removed it
                about = entry.stat(follow_symlinks=False)
                if entry.name.endswith(_SUFFIX):
                    found.append((about.st_mtime, about.st_size, Path(entry.path)))
                old = time.time() - about.st_mtime > _ABANDONED
                if old and entry.name.endswith(_UNFINISHED):
                    Path(entry.path).unlink(missing_ok=True)
        total = size + sum(length for _, length, _ in found)
        for _, length, path in sorted(found):
            if total <= self.limit:
                return
            path.unlink(missing_ok=True)
            total -= length

    def _is_ours(self) -> bool:
        """Whether only this user can write there: executables that are read are run."""
        _check_owner(self.folder.stat(), self.folder)
        return True

    def _tell(self, what: str, error: OSError) -> None:
        if not self._told:
            self._told = True
            _LOG.warning("%s in %s: %s; goes on without", what, self.folder, error)


def _check_owner(about: os.stat_result, path: Path) -> None:
    if not hasattr(os, "getuid"):
        return  # no such owners here: the user's profile is the user's
    if about.st_uid != os.getuid() or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(
            f"{path.name} is another user's, or others may write it: chmod 700 makes it yours alone"
        )


_OTHER: Mapping[str, bool] = MappingProxyType(
    {
        # By default XLA:GPU leaves out a rounding to 16 bits that a fusion widens again, so that a
        # script's own `x.bfloat16().float()` gives x. XLA:CPU does not.
        "xla_allow_excess_precision": False,
    }
)
_CPU: Mapping[str, str] = MappingProxyType(
    {
        # By default reductions and chains of elementwise work go to the same library as matrix
        # products, where a log-sum-exp over (1024, 8192) takes 100 ms instead of 30. It is given
        # matrix products alone, each for itself: see docs/performance.md.
        "xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT",
        # It makes windows of reductions over more than 32 elements, which XLA:CPU runs one by one:
        # emulator/ops/_reduction.py writes them in a form that needs no such pass.
        "xla_disable_hlo_passes": "tree_reduction_rewriter",
        # The order that keeps the fewest bytes alive. By default XLA walks the graph breadth first,
        # for a concurrency that makes no step faster.
        "xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED",
    }
)


def xla_options(device: Any) -> dict[str, Any]:
    """Compiler options for a device, as ``jax.stages.Lowered.compile`` takes them.

    They hold for one executable; nothing global changes.

    Args:
        device: The ``jax.Device`` where the executable runs.

    Returns:
        Options by name. For platforms other than the CPU there is one, which keeps roundings.

    Example:
        >>> import jax
        >>> sorted(xla_options(jax.devices("cpu")[0]))
        ['xla_cpu_experimental_ynn_fusion_type', 'xla_cpu_scheduler_type', 'xla_disable_hlo_passes']
    """
    return dict(_CPU if device.platform == "cpu" else _OTHER)
