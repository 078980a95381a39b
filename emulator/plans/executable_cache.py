"""Executables of plans that outlive the process: what XLA made once is read the next time.

XLA's executables are keyed by all that they depend on: the plan in StableHLO, XLA's version and
options, and the processor. A cache that the user has set up in jax takes its place; jax's settings
are looked at and stay as they are.

One that calls native kernels is kept as others are: XLA asks for the kernels by name when it loads
it, and the kernels' version is part of the key.
"""

from __future__ import annotations

import functools
import hashlib
import io
import logging
import os
import platform
import time
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

import jax
import jaxlib.version
from jax._src.lib.mlir import passmanager  # pyright: ignore[reportPrivateImportUsage]  # as jax's own cache does

from emulator.counters import Source
from emulator.handler_errors import raise_error_of_handler
from emulator.kept_files import KeptFiles, kept_files
from emulator.native.library import CALLS, native_library
from emulator.processor import own_processors

_LOG = logging.getLogger(__name__)

_LIMIT = 1 << 30
"""Most bytes of executables that are kept."""


_LAPACK = b"lapack_"
"""What the names of jax's calls of LAPACK begin with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayForm:
    """What an executable knows of an argument or a result.

    Args:
        shape: Its shape.
        dtype: Name of its element type, as numpy has it.
    """

    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, shape: Sequence[int], dtype: Any) -> Self:
        """The form of arrays of a shape and a type.

        Example:
            >>> ArrayForm.of([2, 3], jax.numpy.dtype("int8"))
            ArrayForm(shape=(2, 3), dtype='int8')
        """
        return cls(shape=tuple(shape), dtype=str(dtype))


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptExecutable:
    """An executable that lies in the cache, and what it takes to call it.

    Args:
        name: Its name in the cache.
        takes: Its arguments.
        gives: Its results.
        donated: How many of the arguments, the first ones, it consumes.
        native: Whether it calls native kernels.
        lapack: Whether it calls LAPACK.
    """

    name: str
    takes: tuple[ArrayForm, ...]
    gives: tuple[ArrayForm, ...]
    donated: int
    native: bool
    lapack: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Executable:
    """An executable of XLA, compiled now or by an earlier process.

    Args:
        compiled: A ``jax.stages.Compiled``.
        source: Where it is from.
        seconds: Time that it took to have it.
        kept: How a later process finds it without lowering anything; None where that cannot be.
    """

    compiled: Any
    source: Source
    seconds: float
    kept: KeptExecutable | None = None


def compiled_or_kept(lowered: Any, options: dict[str, Any]) -> Executable:
    """Compile, or read what an earlier process compiled.

    Args:
        lowered: A ``jax.stages.Lowered``.
        options: XLA's options for it.

    Returns:
        The executable, and where it is from.
    """
    start = time.perf_counter()
    arguments = lowered._lowering.compile_args
    files, source = None, Source.UNKEPT
    # Functions of this process that an executable calls are not there in another one.
    if not (arguments["host_callbacks"] or arguments["keepalive"]):
        files, source = _files(), Source.NO_CACHE
    client = _Client(arguments["backend"], files, source)
    compiled = _compiled(lowered, options, client)
    return Executable(
        compiled=compiled,
        source=client.source,
        seconds=time.perf_counter() - start,
        kept=_kept(lowered, client) if client.name else None,
    )


def load_kept(
    kept: KeptExecutable,
    options: dict[str, Any],
    takes: Sequence[jax.sharding.Sharding],
    gives: Sequence[jax.sharding.Sharding],
) -> Executable | None:
    """Load an executable that an earlier process compiled; nothing of it is lowered.

    Args:
        kept: The executable.
        options: XLA's options for it.
        takes: The devices that have its arguments, and their parts of each.
        gives: The same of its results.

    Returns:
        None if it is not in the cache any more.
    """
    start = time.perf_counter()
    files = _files()
    # XLA asks for native kernels by name when it loads what calls them.
    if files is None or (kept.native and native_library() is None):
        return None
    if kept.lapack:
        _find_lapack()

    # jax makes what calls an executable from a lowered function of the same arguments and results.
    def stand_in(*_: jax.Array) -> tuple[jax.Array, ...]:
        forms = dict.fromkeys(kept.gives)
        made = {form: jax.lax.full(form.shape, 0, form.dtype) for form in forms}
        return tuple([made[form] for form in kept.gives])

    arguments = [
        jax.ShapeDtypeStruct(form.shape, form.dtype, sharding=place)
        for form, place in zip(kept.takes, takes, strict=True)
    ]
    donated = tuple(range(kept.donated))
    jitted = cast("Any", jax).jit(
        stand_in, donate_argnums=donated, keep_unused=True, out_shardings=tuple(gives)
    )
    lowered = jitted.lower(*arguments)
    client = _Client(lowered._lowering.compile_args["backend"], files, name=kept.name)
    try:
        compiled = _compiled(lowered, options, client)
    except _NotKept:
        return None
    seconds = time.perf_counter() - start
    return Executable(compiled=compiled, source=Source.CACHE, seconds=seconds, kept=kept)


@functools.cache
def _find_lapack() -> None:
    """Have jax look up the functions of LAPACK.

    jax does that when it lowers an operation that calls one. If an earlier process has lowered it,
    nothing does it in this one, and the call ends the process by a segmentation fault.
    """
    one = jax.ShapeDtypeStruct((1, 1), jax.numpy.float32)
    traced = cast("Any", jax).jit(jax.lax.linalg.cholesky).trace(one)
    traced.lower(lowering_platforms=("cpu",))  # the default platform may be another


def are_kept() -> bool:
    """Whether this project's cache keeps executables."""
    return _files() is not None


def _kept(lowered: Any, client: _Client) -> KeptExecutable | None:
    """How a later process calls a kept executable; None where that takes more than arrays."""
    arguments = lowered._lowering.compile_args
    if (
        lowered._lowering.const_args
        or arguments["ordered_effects"]
        or arguments["unordered_effects"]
    ):
        return None
    donated = [about.donated for about in jax.tree.leaves(lowered.args_info)]
    count = sum(donated)
    if not all(donated[:count]):
        return None
    return KeptExecutable(
        name=client.name,
        takes=tuple([ArrayForm.of(a.shape, a.dtype) for a in jax.tree.leaves(lowered.in_avals)]),
        gives=tuple([ArrayForm.of(a.shape, a.dtype) for a in jax.tree.leaves(lowered.out_info)]),
        donated=count,
        native=client.native,
        lapack=client.lapack,
    )


def _compiled(lowered: Any, options: dict[str, Any], ours: _Client) -> Any:
    """Have jax compile with a client of ours, and leave what it made with XLA's."""
    arguments = lowered._lowering.compile_args
    client = arguments["backend"]
    arguments["backend"] = ours
    try:
        compiled = lowered.compile(compiler_options=options)
    finally:
        arguments["backend"] = client
    # What runs it knows the device's own client.
    compiled._executable._unloaded_executable.backend = client
    return compiled


class _Client:
    """A client that compiles through the cache, and otherwise is XLA's.

    Args:
        client: XLA's.
        files: Where executables are kept; None where they are not.
        source: Where an executable that is not kept counts as being from.
        name: Name of a kept executable to load, whatever is to be compiled; empty to compile.

    Attributes:
        source: Where the executable that was asked for last is from.
        name: Its name in the cache; empty if it is not there.
        native: Whether it calls native kernels.
        lapack: Whether it calls LAPACK.
    """

    __slots__ = ("_client", "_files", "lapack", "name", "native", "source")

    def __init__(
        self,
        client: Any,
        files: KeptFiles | None,
        source: Source = Source.COMPILED,
        name: str = "",
    ) -> None:
        self._client, self._files, self.source, self.name = client, files, source, name
        self.native = self.lapack = False

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
        if self.name:
            loaded = _loaded(client, files, self.name, devices, options)
            if loaded is None:
                raise _NotKept(self.name)
            return loaded
        code = _code(module)
        self.native, self.lapack = CALLS.encode() in code, _LAPACK in code
        key = _key(client, code, devices, options, native=self.native)
        loaded = _loaded(client, files, key, devices, options)
        if loaded is not None:
            self.source, self.name = Source.CACHE, key
            return loaded
        made = client.compile_and_load(module, executable_devices=devices, compile_options=options)
        self.source = Source.COMPILED
        try:
            data = zlib.compress(made.serialize(), 1)
        except Exception as error:  # a platform that cannot write executables out
            raise_error_of_handler(error)
            self.source = Source.UNKEPT
            _LOG.info("an executable cannot be cached: %s", error)
        else:
            files.put(key, data)
            self.name = key
        return made


class _NotKept(Exception):
    """An executable is not in the cache any more."""


def _loaded(client: Any, files: KeptFiles, name: str, devices: Any, options: Any) -> Any | None:
    """Load an executable of the cache; None where there is none that can be loaded."""
    data = files.get(name)
    if data is None:
        return None
    try:
        return client.deserialize_executable(zlib.decompress(data), devices, options)
    except Exception as error:
        raise_error_of_handler(error)
        # Whatever is wrong with it, compiling it again is right.
        _LOG.info("a cached executable cannot be loaded, so it is compiled again: %s", error)
        files.drop(name)
        return None


def _files() -> KeptFiles | None:
    """Where executables are kept; None where they are not, or where jax keeps them."""
    config = cast("Any", jax.config)
    if config.jax_compilation_cache_dir or not config.jax_enable_compilation_cache:
        return None
    return kept_files("executables", limit=_LIMIT)


def _key(client: Any, code: bytes, devices: Any, options: Any, *, native: bool) -> str:
    """A name for all that an executable depends on."""
    library = native_library() if native else None
    return digest_of(
        code,
        b"" if library is None else library.version.encode(),
        options.SerializeAsString(),
        surroundings(devices),
    )


def digest_of(*parts: bytes) -> str:
    """A name for all of some parts, in their order.

    Args:
        parts: The parts.

    Returns:
        SHA-256 in hexadecimal.

    Example:
        >>> digest_of(b"ab", b"c") == digest_of(b"a", b"bc")
        False
    """
    state = hashlib.sha256()
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.hexdigest()


def surroundings(devices: Iterable[Any]) -> bytes:
    """What XLA's code depends on besides what it is made of: devices, versions, processor, flags.

    Args:
        devices: Where it runs.
    """
    places = [(d.id, d.platform, d.device_kind) for d in devices]
    clients = [*{f"{d.client.platform} {d.client.platform_version}": None for d in devices}]
    return repr((places, clients, _machine(), os.environ.get("XLA_FLAGS", ""))).encode()


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
    cores = str(len(own_processors()))
    parts = (jax.__version__, jaxlib.version.__version__, _processor(), cores)
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
