"""What became of one case, and where a foreign error came from."""

from __future__ import annotations

import dataclasses
import json
import re
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from tests.terminal import foreign as foreign_characters

ROOT = Path(__file__).parents[2]
_OWN = ("pef_schema", "emulator", "samba")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of one case.

    Args:
        label: ``accepted``, ``ran``, the class of the error that refused it, or for a find its
            kind: the class of a foreign error, ``hang``, ``signal 6``, ``memory``, ``terminal``.
        find: Whether this should not have happened.
        place: File, line and function of a find.
        text: The error's text, or a traceback of a find.
    """

    label: str
    find: bool = False
    place: str = ""
    text: str = ""

    @property
    def group(self) -> str:
        """What finds of one cause have in common: kind, file and function."""
        file, _, rest = self.place.partition(":")
        return f"{self.label} at {file} in {rest.partition(' in ')[2]}" if file else self.label

    def as_json(self, **more: object) -> str:
        """One line for a pipe."""
        return json.dumps({**dataclasses.asdict(self), **more})


def refused(error: Exception) -> Outcome:
    """The outcome of an error that the project documents; its text must suit a terminal."""
    return terminal(type(error).__name__, str(error))


def terminal(label: str, text: str) -> Outcome:
    """An outcome with a text for people; a find if control characters stand in it unescaped."""
    hidden = min(foreign_characters(text), key=text.index, default="")
    if not hidden:
        return Outcome(label=label, text=text[:2000])
    line = text.partition(hidden)[0].rpartition("\n")[2][:60]
    return Outcome(
        label=f"terminal: {hidden!a} in {label}",
        find=True,
        text=f"{line!a} is followed by {hidden!a}, which a terminal obeys",
    )


def foreign(error: BaseException) -> Outcome:
    """The outcome of an error that no caller is told of."""
    label = "memory" if isinstance(error, MemoryError) else type(error).__name__
    place = _own_frame(error.__traceback__)
    shown = "".join(traceback.format_exception(error, limit=-12))[-6000:]
    return Outcome(label=label, find=True, place=place, text=shown)


def _own_frame(trace: TracebackType | None) -> str:
    """The innermost place in the project's packages."""
    found = ""
    for frame, line in traceback.walk_tb(trace):
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in _OWN:
            found = f"{path.relative_to(ROOT)}:{line} in {frame.f_code.co_name}"
    return found


_FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')


def dumped_place(text: str) -> str:
    """The innermost place of the project's packages in what ``faulthandler`` wrote.

    Args:
        text: What it wrote; the last dump of the main thread counts.

    Returns:
        The place, empty if there is none.
    """
    dumps = re.split(r"(?:Current t|T)hread 0x\w+[^\n]*\n", text)
    for dump in reversed(dumps[1:] or dumps):
        for path, line, function in _FRAME.findall(dump):
            file = Path(path)
            if file.is_relative_to(ROOT) and file.relative_to(ROOT).parts[0] in _OWN:
                return f"{file.relative_to(ROOT)}:{line} in {function}"
    return ""
