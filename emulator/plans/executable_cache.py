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
from emulator.kept_files import KeptFiles, kept_files
from emulator.native.library import CALLS, native_library

__all__ = ["Executable", "compiled_or_kept", "xla_options"]

_LOG = logging.getLogger(__name__)

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
    return kept_files("executables", limit=_LIMIT)


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
