"""How a command ends whose output may go away, which all packages' commands have in common.

130 after Ctrl-C, 141 where whoever reads the output has gone (``| head -1``), as the shell says of
other programs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Generator
from typing import TextIO

from pef_schema.printable import say_text

_INTERRUPTED = 128 + signal.SIGINT
_NO_READER = 128 + signal.SIGPIPE


def to_the_end(work: Callable[[], int], *, failed: int) -> int:
    """Run a command to its exit code, whatever becomes of its output.

    Args:
        work: Prints; returns the exit code.
        failed: The exit code if the output cannot be written, which one line says.

    Returns:
        The exit code: 130 after Ctrl-C, 141 where whoever reads the output has gone (``| head``).

    Raises:
        SystemExit: As argparse does, after wrong usage and after ``--help``.

    Example:
        >>> to_the_end(lambda: 0, failed=1)
        0
    """
    with _any_encoding(sys.stdout), _any_encoding(sys.stderr):
        try:
            try:
                return work()
            finally:  # here, where a failure can be told, and not at the process's end
                flush()
        except BrokenPipeError:
            _drop_output()
            return _NO_READER
        except KeyboardInterrupt:
            return _INTERRUPTED
        except OSError as error:
            if error.filename is not None:
                raise  # of a file that the command opened, and not of its output
            _drop_output()
            reason = error.strerror or str(error)
            with contextlib.suppress(OSError):
                say_text(f"error: cannot write the output: {reason}", file=sys.stderr)
            return failed


def flush() -> None:
    """Write what was printed."""
    # A process that was started with its output closed has none.
    stream: TextIO | None = sys.stdout
    if stream is not None:
        stream.flush()


def _drop_output() -> None:
    """Let what is still to be flushed when the process ends go nowhere."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


@contextlib.contextmanager
def _any_encoding(stream: TextIO | None) -> Generator[None, None, None]:
    """Meanwhile, what the stream's encoding has no bytes for is written escaped."""
    before = getattr(stream, "errors", None)
    change = getattr(stream, "reconfigure", None)
    if change is None or before is None:
        yield
        return
    change(errors="backslashreplace")
    try:
        yield
    finally:
        with contextlib.suppress(OSError, ValueError):
            change(errors=before)
