"""Section times that are kept: in a report of ``measure-sections``, or in a base beside the PEF.

Times of another hour or another machine say little, so a kept base holds the program itself: the
gate measures both sides again, in turns. The kept times tell what the machine has done since then.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import math
import statistics
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.errors import BadBase, BadFile, BadSectionTimes, TimesOfTwoProcessors
from bench.measurement import FULL, environment
from bench.output import read_json, write_text
from bench.stats import Comparison, compare
from emulator.processor import processor
from pef_schema import PefError, read_info
from samba.inspection.running import folded_json

FORMAT, VERSION = "bench.gate", 1
_LARGEST = 1 << 30
"""Bytes of a kept PEF; a file may claim any number."""
_NANO, _MILLI = 1e-9, 1e-3
_MARKS = (b"{", b"[")
"""How JSON begins; no PEF does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionTimes:
    """Times of a program's sections.

    Args:
        seconds: Samples by section; empty where none were kept.
        processor: What they were taken on, in words; empty where the file does not say.
    """

    seconds: Mapping[str, Sequence[float]]
    processor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Base(SectionTimes):
    """What a PEF is compared with.

    Args:
        pef: Path of the PEF, a temporary one where the base holds it.
        seconds, processor: The times that were kept with it.
    """

    pef: Path

    def since_then(self, now: float) -> str:
        """A line about the machine: the same program, when it was kept and now.

        Args:
            now: Median seconds of base's full run, measured now.

        Returns:
            The line; empty where no such time was kept.

        Example:
            >>> base = Base(pef=Path("x"), processor="P", seconds={FULL: [2.0, 2.0]})
            >>> print(base.since_then(3.0))
            base takes 1.500 of the time that it took on P when it was kept; both are measured again
        """
        samples = self.seconds.get(FULL)
        if not samples:
            return ""
        return (
            f"base takes {now / statistics.median(samples):.3f} of the time that it took on "
            f"{self.processor} when it was kept; both are measured again"
        )


def keep_base(path: Path, pef: Path, times: Mapping[str, Sequence[float]]) -> None:
    """Write a base: a PEF with the times of its sections.

    Args:
        path: Where.
        pef: The PEF.
        times: Seconds by section.

    Raises:
        PefError: If the PEF cannot be read, or the base cannot be written; what was there is as
            it was.
    """
    content = {
        "format": FORMAT,
        "version": VERSION,
        "name": pef.name,
        "digest": read_info(str(pef)).digest,
        "processor": str(processor()),
        "versions": environment(threads=0)["versions"],
        "nanoseconds": {name: [round(t / _NANO) for t in spans] for name, spans in times.items()},
        "pef": base64.b64encode(zlib.compress(pef.read_bytes(), 9)).decode("ascii"),
    }
    write_text(path, folded_json(content) + "\n")


@contextlib.contextmanager
def opened_base(path: Path) -> Iterator[Base]:
    """Open a base to compare with.

    Args:
        path: A PEF, or a file that :func:`keep_base` wrote.

    Yields:
        The base. Its PEF exists as long as the context lasts.

    Raises:
        BadBase: If the file is neither of them, or is damaged.
    """
    if _first_byte(path, BadBase) not in _MARKS:
        try:
            read_info(str(path))
        except PefError as error:
            raise BadBase(path=str(path), reason=error.what) from error
        yield Base(pef=path, seconds={})
        return
    content = _read_base(path)
    with tempfile.TemporaryDirectory(prefix="bench-base-") as folder:
        pef = Path(folder) / "base.pef"
        pef.write_bytes(_unpack_pef(path, content))
        try:
            digest = read_info(str(pef)).digest
        except PefError as error:
            raise BadBase(path=str(path), reason=f"the PEF in it is bad: {error.what}") from error
        if digest != content.get("digest"):
            raise BadBase(path=str(path), reason="the PEF in it is not the one that it names")
        times = _times(path, content)
        yield Base(pef=pef, processor=times.processor, seconds=times.seconds)


def _kept_times(path: Path) -> SectionTimes | None:
    """The times of a kept base, without its PEF; None if the file is something else.

    Raises:
        BadBase: If it is a kept base without whole times.
    """
    try:
        content = read_json(path, BadBase)
    except BadBase:
        return None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        return None
    return _times(path, _read_base(path))


def _times(path: Path, content: Mapping[str, Any]) -> SectionTimes:
    times = content.get("nanoseconds")
    good = isinstance(times, dict) and all(
        isinstance(spans, list) and spans and all(type(t) is int and t > 0 for t in spans)
        for spans in times.values()
    )
    if not good or not isinstance(times, dict) or not times:
        raise BadBase(path=str(path), reason="its times are not lists of whole nanoseconds")
    seconds = {name: [t * _NANO for t in spans] for name, spans in times.items()}
    return SectionTimes(seconds=seconds, processor=str(content.get("processor", "")))


def _first_byte(path: Path, bad: type[BadFile]) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(64).lstrip()[:1]
    except OSError as error:
        raise bad(path=str(path), reason=f"cannot be read: {error.strerror}") from error


def _read_base(path: Path) -> dict[str, Any]:
    content = read_json(path, BadBase)
    if isinstance(content, list):
        raise BadBase(
            path=str(path),
            reason="it only holds times, as measure-sections writes them. They were measured at "
            "another time, so a gate cannot use them; `python -m bench compare` prints two such "
            "files side by side",
        )
    if content.get("format") != FORMAT or content.get("version") != VERSION:
        got = f"format {content.get('format')!r} version {content.get('version')!r}"
        raise BadBase(path=str(path), reason=f"found {got}, expected {FORMAT!r} version {VERSION}")
    return content


def _unpack_pef(path: Path, content: Mapping[str, Any]) -> bytes:
    try:
        packed = base64.b64decode(str(content["pef"]), validate=True)
        stream = zlib.decompressobj()
        data = stream.decompress(packed, _LARGEST)
        whole = stream.eof and not stream.unconsumed_tail
    except (KeyError, ValueError, binascii.Error, zlib.error) as error:
        raise BadBase(path=str(path), reason=f"it holds no PEF: {error!r:.200}") from error
    if not whole:
        raise BadBase(path=str(path), reason=f"the PEF in it is cut, or over {_LARGEST:,} bytes")
    return data


def are_section_times(path: Path) -> bool:
    """Whether a file is a kept base, or a list as section times are: the bench's results are none.

    Args:
        path: The file.
    """
    try:
        return _first_byte(path, BadSectionTimes) == b"[" or _kept_times(path) is not None
    except BadSectionTimes:
        return False


def load_section_times(path: Path) -> SectionTimes:
    """Read section times.

    Args:
        path: A report of ``measure-sections``, or a kept base.

    Returns:
        The times.

    Raises:
        BadSectionTimes: If it is missing or something else.
        BadBase: If it is a damaged base.
    """
    base = _kept_times(path)
    if base is not None:
        return base
    rows = read_json(path, BadSectionTimes)
    if not isinstance(rows, list):
        raise BadSectionTimes(path=str(path), reason="it is not a list of sections")
    try:
        times = {str(row["name"]): [float(t) * _MILLI for t in row["samples_ms"]] for row in rows}
    except (KeyError, TypeError, ValueError) as error:
        reason = f"a row without {error!s:.100}" if isinstance(error, KeyError) else "no rows"
        raise BadSectionTimes(path=str(path), reason=reason) from error
    if not times or not all(times and all(map(_is_time, times)) for times in times.values()):
        raise BadSectionTimes(path=str(path), reason="a section without times")
    return SectionTimes(seconds=times)


def _is_time(seconds: float) -> bool:
    return seconds > 0 and math.isfinite(seconds)


def compared(
    base: Path, head: Path, *, across_processors: bool = False
) -> tuple[list[Comparison], list[str]]:
    """Compare the times of two files, section by section.

    Args:
        base, head: A report of ``measure-sections``, or kept bases.
        across_processors: Whether they may be of two processors.

    Returns:
        Comparisons of the sections that both have, and lines about the others.

    Raises:
        BadSectionTimes: If one is missing or something else, or they have no section in common.
        TimesOfTwoProcessors: If they are, and may not.
    """
    before, after = load_section_times(base), load_section_times(head)
    names = before.processor, after.processor
    if all(names) and names[0] != names[1] and not across_processors:
        raise TimesOfTwoProcessors(names=(str(base), str(head)), processors=names)
    old, new = before.seconds, after.seconds
    comparisons = [compare(name, old[name], new[name]) for name in new if name in old]
    if not comparisons:
        raise BadSectionTimes(path=str(head), reason=f"it has no section of {base}")
    lines = [f"{name}: only in head" for name in new if name not in old]
    lines += [f"{name}: only in base" for name in old if name not in new]
    return comparisons, lines
