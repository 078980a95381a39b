"""What a PEF is compared with: another PEF, or a file that holds one with the times it took.

Times of another hour or another machine say little, so a kept base holds the program itself: the
gate measures both sides anew, in turns, and the kept times are there to be looked at.
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
from pathlib import Path
from typing import Any

from bench.environment import environment
from bench.errors import BadBase
from emulator.processor import processor
from pef_schema import PefError, read_info
from pef_schema.atomic import write_atomically

__all__ = ["base_pef", "keep_base"]

FORMAT, VERSION = "bench.gate", 1
_LARGEST = 1 << 30
"""Bytes of a kept PEF; a file may claim any number."""


def keep_base(path: Path, pef: Path, times: Mapping[str, Sequence[float]]) -> None:
    """Write a base: a PEF with the times of its sections.

    Args:
        path: Where.
        pef: The PEF.
        times: Seconds by section.

    Raises:
        PefUnwritable: If it cannot be written; what was there is as it was.
    """
    found = {
        "format": FORMAT,
        "version": VERSION,
        "name": pef.name,
        "digest": read_info(str(pef)).digest,
        "processor": str(processor()),
        "versions": environment(threads=0)["versions"],
        "median_seconds": {name: statistics.median(t) for name, t in times.items()},
        "pef": base64.b64encode(zlib.compress(pef.read_bytes(), 9)).decode("ascii"),
    }
    write_atomically(str(path), [(json.dumps(found, indent=1) + "\n").encode()])


@contextlib.contextmanager
def base_pef(path: Path) -> Iterator[Path]:
    """The PEF of a base.

    Args:
        path: A PEF, or what :func:`keep_base` wrote.

    Yields:
        Path of the PEF, a temporary one where the base holds it.

    Raises:
        BadBase: If it is neither, or damaged.
    """
    if not _looks_like_json(path):
        try:
            read_info(str(path))
        except PefError as error:
            raise BadBase(path=str(path), reason=str(error)) from error
        yield path
        return
    found = _parsed(path)
    with tempfile.TemporaryDirectory(prefix="bench-base-") as folder:
        made = Path(folder) / "base.pef"
        made.write_bytes(_unpacked(path, found))
        try:
            digest = read_info(str(made)).digest
        except PefError as error:
            raise BadBase(path=str(path), reason=f"the PEF in it is bad: {error}") from error
        if digest != found.get("digest"):
            raise BadBase(path=str(path), reason="the PEF in it is not the one that it names")
        yield made


def _looks_like_json(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(64).lstrip()[:1] in (b"{", b"[")
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
            reason="times alone, as measure-sections writes them: they are of another hour, and "
            "`python -m bench compare` prints them side by side",
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
