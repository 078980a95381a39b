"""Files that commands read and write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.errors import BadFile
from pef_schema.atomic import write_atomically

__all__ = ["read_json", "write_json", "write_text"]


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
