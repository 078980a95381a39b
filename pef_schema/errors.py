"""Errors that users see. Every message says where, what was found, what was wanted, what to do."""

from __future__ import annotations

import os
from collections.abc import Sequence

from pef_schema.printable import one_line, printable

_SHOWN = 20
"""Problems that a message lists; the error's ``problems`` holds all of them."""


def quoted(name: object, most: int = 200) -> str:
    """A name from outside as part of a message: one line, all of it visible, not too long.

    Args:
        name: The name, or whatever a script gave in its place.
        most: Characters to write out.

    Example:
        >>> quoted("fc1__weight"), quoted("a\\x1b[31m\\n"), quoted("x" * 99, most=4)
        ('fc1__weight', "'a\\\\x1b[31m\\\\n'", 'xxxx... (99 characters)')
    """
    if not isinstance(name, str):
        try:
            name = repr(name)
        except Exception:  # what a script's own class does
            return f"a {type(name).__name__}"
    cut = name[:most]
    more = f"... ({len(name)} characters)" if len(name) > most else ""
    return (cut if cut and cut.isprintable() else ascii(cut)) + more


class SambaError(Exception):
    """Base of every error this project raises on purpose.

    Its text has nothing that would steer a terminal; attributes keep names as they were found.

    Attributes:
        deviation: Name of the row of ``docs/deviations.md`` if it refuses what torch or a
            documented page allows; else empty.
    """

    deviation: str = ""

    def __init__(self, *args: object) -> None:
        super().__init__(*[printable(a) if isinstance(a, str) else a for a in args])


class PefError(SambaError):
    """A PEF that cannot be read or written.

    Args:
        what: What was found and what was wanted, without a full stop.
        path: The file; None for bytes in memory.
        offset: Byte of the file at which it was found.
        need: What was wanted there, usually a count of bytes or a version.
        have: What was there instead.
        hint: What to do, one sentence; the class's own advice by default.
    """

    advice = ""

    def __init__(
        self,
        what: str,
        *,
        path: str | os.PathLike[str] | None = None,
        offset: int | None = None,
        need: int | None = None,
        have: int | None = None,
        hint: str | None = None,
    ) -> None:
        self.what = what
        self.path = None if path is None else os.fspath(path)
        self.offset, self.need, self.have = offset, need, have
        self.hint = self.advice if hint is None else hint
        super().__init__(what)

    def __str__(self) -> str:
        where = "PEF in memory" if self.path is None else quoted(self.path, 1024)
        if self.offset is not None:
            where += f": byte {self.offset}"
        return printable(f"{where}: {self.what}." + (f" {self.hint}" if self.hint else ""))

    def __reduce__(self) -> tuple[object, ...]:
        # The default would call __init__ with args alone and lose the keywords.
        return (_rebuild, (type(self), self.what), self.__dict__)


def _rebuild(kind: type[PefError], what: str) -> PefError:
    return kind.__new__(kind, what)


class PefMissing(PefError):
    """A file that does not exist."""

    advice = "Check the path, or compile the model first."


class PefUnreadable(PefError):
    """The file exists but the system does not let it be read."""

    advice = "Check the file's permissions and its disk."


class PefNotRegular(PefError):
    """The path is a folder, a pipe or a device."""

    advice = "Give the path of the .pef file itself."


class PefNotOurs(PefError):
    """The file is something other than a PEF of this project."""

    advice = "Give a file that `compile` wrote."


class PefForHardware(PefNotOurs):
    """The file is a PEF made for the vendor's hardware."""

    advice = "Compile the model again with this package."


class PefTruncated(PefError):
    """The file ends before its content does."""

    advice = "Copy the file again or recompile."


class PefDamaged(PefError):
    """The bytes are not those that were written."""

    advice = "Copy the file again or recompile."


class PefMalformed(PefError):
    """The metadata is not a well-formed FlatBuffer of our schema, though its digest is right."""

    advice = "The program that wrote it is at fault; recompile with this package."


class PefTooNew(PefError):
    """The file needs a newer reader."""

    advice = "Update this package, or recompile with the version installed here."


class PefTooOld(PefError):
    """The file's format is no longer read."""

    advice = "Recompile the model."


class PefLimit(PefError):
    """Something is larger than the format allows."""

    advice = "See the limits in docs/pef_format.md."


class PefUnwritable(PefError):
    """The file could not be written; what was there before is untouched unless the text says so."""

    advice = "Choose another output folder, or change its permissions."


class PefInvalid(PefError):
    """The program contradicts itself.

    Args:
        problems: Every problem found, one line each.
        path: The file; None for a program in memory.
    """

    advice = "The program that made it is at fault; recompile with this package."

    def __init__(
        self, problems: Sequence[str], *, path: str | os.PathLike[str] | None = None
    ) -> None:
        self.problems = tuple(problems)
        shown = "".join(f"\n  {one_line(problem)}" for problem in self.problems[:_SHOWN])
        if len(self.problems) > _SHOWN:
            shown += f"\n  ... and {len(self.problems) - _SHOWN} more"
        count = len(self.problems)
        super().__init__(f"{count} problem{'s' * (count != 1)}:{shown}\n", path=path)

    def __str__(self) -> str:
        where = "program" if self.path is None else self.path
        return printable(f"{where}: {self.what}{self.hint}")
