"""What a PEF is compared with: another PEF, or a file that holds one with the times it took.

Times of another hour or another machine say little, so a kept base holds the program itself: the
gate measures both sides anew, in turns. The kept times tell what the machine has done since then.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import statistics
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.environment import environment
from bench.errors import BadBase
from bench.measurement import FULL
from bench.output import write_text
from emulator.processor import processor
from pef_schema import PefError, read_info
from samba.inspection.running import folded_json

__all__ = ["Base", "keep_base", "kept_times", "opened_base"]

FORMAT, VERSION = "bench.gate", 1
_LARGEST = 1 << 30
"""Bytes of a kept PEF; a file may claim any number."""
_NANO = 1e-9
_MARKS = (b"{", b"[")
"""How JSON begins; no PEF does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """What a PEF is compared with.

    Args:
        pef: Path of the PEF, a temporary one where the base holds it.
        processor: What its times were kept on, in words; empty where it has none.
        seconds: The times that were kept, by section; empty where there are none.
    """

    pef: Path
    processor: str = ""
    seconds: Mapping[str, Sequence[float]]

    def since_then(self, now: float) -> str:
        """A line about the machine: the same program, when it was kept and now.

        Args:
            now: Median seconds of base's full run, measured now.

        Returns:
            The line; empty where no such time was kept.

        Example:
            >>> base = Base(pef=Path("x"), processor="P", seconds={FULL: [2.0, 2.0]})
            >>> print(base.since_then(3.0))
            base takes 1.500 of the time that it took on P when it was kept; both are measured anew
        """
        kept = self.seconds.get(FULL)
        if not kept:
            return ""
        return (
            f"base takes {now / statistics.median(kept):.3f} of the time that it took on "
            f"{self.processor} when it was kept; both are measured anew"
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
    found = {
        "format": FORMAT,
        "version": VERSION,
        "name": pef.name,
        "digest": read_info(str(pef)).digest,
        "processor": str(processor()),
        "versions": environment(threads=0)["versions"],
        "nanoseconds": {name: [round(t / _NANO) for t in taken] for name, taken in times.items()},
        "pef": base64.b64encode(zlib.compress(pef.read_bytes(), 9)).decode("ascii"),
    }
    write_text(path, folded_json(found) + "\n")


@contextlib.contextmanager
def opened_base(path: Path) -> Iterator[Base]:
    """What a base holds.

    Args:
        path: A PEF, or what :func:`keep_base` wrote.

    Yields:
        The base; its PEF is there as long as the context lasts.

    Raises:
        BadBase: If it is neither, or damaged.
    """
    if not _looks_like_json(path):
        try:
            read_info(str(path))
        except PefError as error:
            raise BadBase(path=str(path), reason=error.what) from error
        yield Base(pef=path, seconds={})
        return
    found = _parsed(path)
    with tempfile.TemporaryDirectory(prefix="bench-base-") as folder:
        made = Path(folder) / "base.pef"
        made.write_bytes(_unpacked(path, found))
        try:
            digest = read_info(str(made)).digest
        except PefError as error:
            raise BadBase(path=str(path), reason=f"the PEF in it is bad: {error.what}") from error
        if digest != found.get("digest"):
            raise BadBase(path=str(path), reason="the PEF in it is not the one that it names")
        yield Base(pef=made, processor=str(found.get("processor", "")), seconds=_times(path, found))


def kept_times(path: Path) -> tuple[str, dict[str, list[float]]] | None:
    """The times of a kept base, without its PEF.

    Args:
        path: The file.

    Returns:
        The processor in words and seconds by section; None if the file is something else.

    Raises:
        BadBase: If it is a kept base without whole times.
    """
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        return None
    found = _parsed(path)
    return str(found.get("processor", "")), _times(path, found)


def _times(path: Path, found: Mapping[str, Any]) -> dict[str, list[float]]:
    times = found.get("nanoseconds")
    good = isinstance(times, dict) and all(
        isinstance(taken, list) and taken and all(type(t) is int and t > 0 for t in taken)
        for taken in times.values()
    )
    if not good or not isinstance(times, dict) or not times:
        raise BadBase(path=str(path), reason="its times are no lists of whole nanoseconds")
    return {name: [t * _NANO for t in taken] for name, taken in times.items()}


def _looks_like_json(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(64).lstrip()[:1] in _MARKS
    except OSError as error:
        raise BadBase(path=str(path), reason=f"cannot be read: {error.strerror}") from error


def _parsed(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise BadBase(path=str(path), reason=f"not JSON: {error!s:.200}") from error
    if isinstance(found, list):
        raise BadBase(
            path=str(path),
            reason="times alone, as measure-sections writes them; they are of another hour, so no "
            "verdict can be had from them, but `python -m bench compare` prints them side by side",
        )
    if found.get("format") != FORMAT or found.get("version") != VERSION:
        got = f"format {found.get('format')!r} version {found.get('version')!r}"
        raise BadBase(path=str(path), reason=f"found {got}, wanted {FORMAT!r} version {VERSION}")
    return found


def _unpacked(path: Path, found: Mapping[str, Any]) -> bytes:
    try:
        packed = base64.b64decode(str(found["pef"]), validate=True)
        stream = zlib.decompressobj()
        data = stream.decompress(packed, _LARGEST)
        whole = stream.eof and not stream.unconsumed_tail
    except (KeyError, ValueError, binascii.Error, zlib.error) as error:
        raise BadBase(path=str(path), reason=f"it holds no PEF: {error!r:.200}") from error
    if not whole:
        raise BadBase(path=str(path), reason=f"the PEF in it is cut, or over {_LARGEST:,} bytes")
    return data
