"""Options of XLA:CPU that are entries of a map in its compile options.

jax's compiler options are single values. What XLA is given in the end is a protobuf, in which a map
that stands behind another one of the same name is added to it: the entries are appended in bytes.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

from emulator.handler_errors import raise_error_of_handler

__all__ = ["ONE_READER", "has_emitters", "with_extra_options"]

_LOG = logging.getLogger(__name__)

ONE_READER = "xla_cpu_use_multi_output_fusion"
"""XLA fuses a value into its reader only where it has one, and makes all others once, in memory.

Without it a chain of cheap operations is computed anew by each of its readers, and so are the
chains that it begins with: the work grows with the square of the depth. The option is named for a
further pass, which joins fusions that read the same; ``xla_options`` leaves that out, since one
core alone computes what it joins.
"""

_NO_EMITTERS = "xla_cpu_use_fusion_emitters: false"

_BUILD_OPTIONS = 3  # CompileOptionsProto.executable_build_options, in xla/pjrt/proto
_DEBUG_OPTIONS = 3  # ExecutableBuildOptionsProto.debug_options
_EXTRA = 500  # DebugOptions.xla_backend_extra_options, a map of strings, in xla/xla.proto


def has_emitters(options: Any) -> bool:
    """Whether XLA emits fusions by its present code; ``XLA_FLAGS`` can ask for the earlier one.

    With the earlier one :data:`ONE_READER` gives wrong numbers (``docs/decisions/0015-fusion.md``).

    Args:
        options: jaxlib's ``CompileOptions``.

    Returns:
        Whether it does.

    Example:
        >>> from types import SimpleNamespace
        >>> def options(debug):
        ...     build = SimpleNamespace(debug_options=f"xla_cpu_use_fusion_emitters: {debug}")
        ...     return SimpleNamespace(executable_build_options=build)
        >>> has_emitters(options("true")), has_emitters(options("false"))
        (True, False)
    """
    return _NO_EMITTERS not in str(options.executable_build_options.debug_options)


def with_extra_options(options: Any) -> Any:
    """Compile options with the entry :data:`ONE_READER`.

    Args:
        options: jaxlib's ``CompileOptions`` for the CPU.

    Returns:
        New ones; the same ones if jaxlib does not take the entry, which the log says once.

    Example:
        >>> from jax._src.lib import xla_client
        >>> options = with_extra_options(xla_client.CompileOptions())
        >>> ONE_READER in str(options.executable_build_options.debug_options)
        True
    """
    try:
        extended: Any = options.__class__.ParseFromString(options.SerializeAsString() + _entry())
        taken = ONE_READER in str(extended.executable_build_options.debug_options)
    except Exception as error:
        raise_error_of_handler(error)
        _say_once(f"{type(error).__name__}: {error}")
        return options
    if not taken:  # a number of a field is another one now
        _say_once("it is not among the options that were read back")
        return options
    return extended


@functools.cache
def _say_once(reason: str) -> None:
    _LOG.warning("XLA compiles without %s: %s", ONE_READER, reason)


@functools.cache
def _entry() -> bytes:
    entry = _field(1, ONE_READER.encode()) + _field(2, b"true")
    return _field(_BUILD_OPTIONS, _field(_DEBUG_OPTIONS, _field(_EXTRA, entry)))


def _field(number: int, content: bytes) -> bytes:
    """A field of a protobuf that holds bytes."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    """A number in groups of seven bits, the lowest first, all but the last marked."""
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)
