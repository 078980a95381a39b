"""Errors of this project that a script does not catch: one message with the script's line."""

from __future__ import annotations

import os
import sys
import traceback
from types import TracebackType

from pef_schema.errors import SambaError
from pef_schema.printable import say_text
from samba.abexit import SambaAtexit
from samba.remembering.code_origins import is_users_file

FRAMES_VARIABLE = "SAMBA_TRACEBACK"
"""Environment variable that asks for the frames of errors that nobody catches; ``0`` for none."""


def show_uncaught_as_messages(*, debug: bool) -> None:
    """Have this process show an error of this project that nobody catches as one message.

    All other errors, and those that one of these is a consequence of, are shown by the hook that
    was there before. Where somebody else looks after errors already, as debuggers do, nothing is
    changed; notebooks, pytest and ``pdb`` ask no such hook.

    Args:
        debug: Whether frames are asked for: then nothing is changed.
    """
    if debug or os.environ.get(FRAMES_VARIABLE, "").strip() not in ("", "0"):
        return
    before = sys.excepthook
    if before is not sys.__excepthook__:
        return

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        text = message_of(error, trace)
        if text:
            say_text(text, file=sys.stderr)
        else:
            before(kind, error, trace)

    sys.excepthook = hook
    SambaAtexit.show_by(lambda error: hook(type(error), error, error.__traceback__))


def message_of(error: BaseException, trace: TracebackType | None) -> str:
    """The message that tells an error as a whole.

    Args:
        error: What was raised.
        trace: Where.

    Returns:
        Its text with the script's line; empty where its frames are needed, because it is not an
        error of this project, or follows from one that is not.

    Example:
        >>> message_of(SambaError("no such thing"), None)
        'SambaError: no such thing [SAMBA_TRACEBACK=1 shows the frames]'
        >>> message_of(ValueError("theirs"), None)
        ''
    """
    if not _is_all_ours(error):
        return ""
    text = "\n".join([str(error), *getattr(error, "__notes__", ())])
    line = _users_line(trace)
    where = "" if not line or f"{line[0]}:{line[1]}" in text else f"{_short(line[0])}:{line[1]}: "
    return f"{where}{type(error).__name__}: {text} [{FRAMES_VARIABLE}=1 shows the frames]"


def _is_all_ours(error: BaseException | None) -> bool:
    """Whether an error, and those that it is a consequence of, are this project's."""
    ids: set[int] = set()
    while error is not None and id(error) not in ids:
        if not isinstance(error, SambaError):
            return False
        ids.add(id(error))
        hidden = error.__suppress_context__
        error = error.__cause__ or (None if hidden else error.__context__)
    return True


def _users_line(trace: TracebackType | None) -> tuple[str, int] | None:
    """File and line of the script, or of a module of the user's, that led to the error."""
    lines = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(trace)
        if is_users_file(frame.f_code.co_filename)
    ]
    return lines[-1] if lines else None


def _short(path: str) -> str:
    """A path from the working folder on, if it lies there."""
    try:
        shorter = os.path.relpath(path)
    except (OSError, ValueError):  # the working folder is gone, or on another drive
        return path
    return path if shorter.startswith(os.pardir) else shorter
