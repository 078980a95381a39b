"""Whatever fails while a program is lowered becomes an error of the device, with its place."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from emulator.errors import DeviceError, LoweringError
from emulator.handler_errors import raise_error_of_handler
from pef_schema.program import Node

_LONGEST = 500


def reason_of(error: Exception) -> str:
    """What an error of a library says, in one line.

    Args:
        error: The error.

    Example:
        >>> reason_of(KeyError("x"))
        "KeyError: 'x'"
    """
    text = " ".join(str(error).split())
    shown = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    return f"{type(error).__name__}: {shown}" if shown else type(error).__name__


@contextmanager
def failures_of(node: Node) -> Generator[None, None, None]:
    """Turn what a body raises into a :class:`LoweringError` with the place of a node.

    Errors of the device pass as they are, as does what a signal's handler raises.

    Args:
        node: The node that the body lowers.

    Raises:
        LoweringError: If the body raised something else; that is its cause.
    """
    try:
        yield
    except DeviceError:
        raise
    except Exception as error:
        raise_error_of_handler(error)
        raise LoweringError(
            op=node.op, source=node.source, module=node.module, reason=reason_of(error)
        ) from error
