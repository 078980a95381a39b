"""Files that commands read and write: outputs are checked before anything is measured."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.errors import BadFile
from pef_schema import PefUnwritable
from pef_schema.atomic import write_atomically

__all__ = ["check_outputs", "read_json", "write_json", "write_text"]


def check_outputs(paths: Iterable[Path | None]) -> None:
    """Refuse outputs that could not be written, before minutes are spent on what goes there.

    Args:
        paths: Where something is to be written; None where nothing is.

    Raises:
        PefUnwritable: If a folder is missing or closed, or a folder is in the way.

    Example:
        >>> check_outputs([None, Path("report.json")])
    """
    for path in paths:
        if path is None:
            continue
        folder = path.absolute().parent
        if not folder.is_dir():
            raise PefUnwritable(
                f"there is no folder {folder}", path=path, hint="Create the folder first."
            )
        if path.is_dir():
            raise PefUnwritable(
                "a folder of this name is in the way", path=path, hint="Choose another name."
            )
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PefUnwritable(f"cannot write to the folder {folder}", path=path)


def read_json(path: Path, bad: type[BadFile]) -> Any:
    """The value that a file holds as JSON.

    Args:
        path: The file.
        bad: The error to raise.

    Raises:
        BadFile: As ``bad``, if the file cannot be read or holds no JSON.
    """
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise bad(path=str(path), reason=f"cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise bad(path=str(path), reason=f"not JSON: {error!s:.200}") from error


def write_text(path: Path, text: str) -> None:
    """Replace a file by a text.

    Args:
        path: The file.
        text: Its content.

    Raises:
        PefUnwritable: If it cannot be written; what was there is as it was.
    """
    write_atomically(str(path), [text.encode()])


def write_json(path: Path, what: object) -> None:
    """Replace a file by a value as JSON.

    Args:
        path: The file.
        what: What JSON can hold.

    Raises:
        PefUnwritable: If it cannot be written; what was there is as it was.
    """
    write_text(path, json.dumps(what, indent=1) + "\n")
