"""The user's code: which files belong to it, and which line of it runs or calls."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import FrameType
from typing import TextIO

import torch

from pef_schema.program_facts import is_installed

# Each ends in a separator: torchvision lies beside torch, and is none of its parts.
_TORCH = os.path.join(Path(torch.__file__).parent, "")
_SAMBA = os.path.join(Path(__file__).parents[1], "")
_PACKAGES = (_TORCH, os.path.join(sysconfig.get_paths()["stdlib"], ""), _SAMBA)
_CALLING = (_SAMBA, f"{_TORCH}_tensor.py", f"{_TORCH}overrides.py")
_EXPORTER = os.path.join(_TORCH, "export", "")
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def is_user_file(filename: str) -> bool:
    """Whether a file belongs to the user rather than to torch, Python or this package."""
    return not filename.startswith(_PACKAGES) and not filename.startswith("<")


@cache
def is_script_file(filename: str) -> bool:
    """Whether a file is the user's own, and not of an installed package."""
    return is_user_file(filename) and not is_installed(filename)


def source_line(stack_trace: str | None) -> str:
    """The innermost user line of a torch stack trace as ``file:line``; empty if there is none."""
    if not stack_trace:
        return ""
    frames = _FRAME.findall(stack_trace)
    for filename, line in reversed(frames):
        if is_user_file(filename):
            return f"{filename}:{line}"
    return ""


SOURCE = "samba_source"
"""Key under which an exported node holds its source line, where the stack would not tell it."""


def node_line(node: torch.fx.Node, otherwise: str = "") -> str:
    """The user's line of an exported node as ``file:line``.

    Args:
        node: The node.
        otherwise: What to say where no line of the user's is known.
    """
    line = (node.meta.get("custom") or {}).get(SOURCE)
    return line or source_line(node.meta.get("stack_trace")) or otherwise


def calling_line() -> str:
    """The user's line that is being executed, as ``file:line``; ``forward()`` if there is none."""
    for frame, line in traceback.walk_stack(sys._getframe(1)):
        if is_user_file(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{line}"
    return "forward()"


def called_by_user() -> bool:
    """Whether the user's code calls the function of torch that a mode sees, and not torch's own."""
    frame = asking_frame()
    return frame is not None and is_user_file(frame.f_code.co_filename)


def asking_frame() -> FrameType | None:
    """The frame that calls the function of torch that a mode sees, whoever's it is."""
    for frame, _ in traceback.walk_stack(sys._getframe(1)):
        code = frame.f_code
        if code.co_name != "__torch_function__" and not code.co_filename.startswith(_CALLING):
            return frame
    return None


def called_in_users_code() -> bool:
    """Whether the user's own line calls the function of torch that a mode sees.

    Unlike for :func:`called_by_user`, what this package calls on its behalf does not count.
    """
    for frame, _ in traceback.walk_stack(sys._getframe(1)):
        code, name = frame.f_code, frame.f_globals.get("__name__", "")
        if code.co_filename in _CALLING or name in _SEEING or code.co_name == "__torch_function__":
            continue
        return is_user_file(code.co_filename)
    return False


_SEEING = ("samba.tracer.layouts", "samba.tracer.patched_functions")


def users_callers(frame: FrameType | None) -> Iterator[FrameType]:
    """The frames of the user's code from one outwards, up to the call of the exporter.

    Args:
        frame: The first frame.
    """
    while frame is not None and not frame.f_code.co_filename.startswith(_EXPORTER):
        if is_user_file(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def called_by_this_package(but: tuple[str, ...]) -> bool:
    """Whether this package, and neither the user nor a mode, calls the function of torch.

    Args:
        but: Names of modules with modes, which do not count.
    """
    for frame, _ in traceback.walk_stack(sys._getframe(1)):
        code, name = frame.f_code, frame.f_globals.get("__name__", "")
        if not code.co_filename.startswith(_TORCH) and name not in but:
            return code.co_filename.startswith(_SAMBA)
    return False


def is_asked_by_torch(name: str) -> bool:
    """Whether the code of torch or of this package asks a question, and not the model's.

    Args:
        name: The name of the function that answers. Callers of the same name only pass the question
            on, as ``torch._dynamo.is_compiling`` does: their own callers count.
    """
    for frame, _ in traceback.walk_stack(sys._getframe(2)):
        if frame.f_code.co_name != name:
            return frame.f_code.co_filename.startswith((_TORCH, _SAMBA))
    return False


def at_users_line(show: Callable[..., None]) -> Callable[..., None]:
    """A way to show warnings that shows them at the line of the user that is being executed.

    Args:
        show: What shows a warning, as ``warnings.showwarning``.

    Returns:
        A function that takes its place.
    """

    def shown(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if not is_user_file(filename):
            users = calling_line().rpartition(":")
            if users[0]:
                filename, lineno, line = users[0], int(users[2]), None
        show(message, category, filename, lineno, file, line)

    return shown
