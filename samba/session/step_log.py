"""The files of a training that is followed: a line of JSON for each step, and TensorBoard's events.

docs/follow.md describes the keys. A key keeps its name and its meaning while ``version`` stays the
same; new keys may come at any time.
"""

from __future__ import annotations

import enum
import errno
import importlib
import logging
import math
import os
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pef_schema.errors import SambaError, quoted
from pef_schema.printable import json_text
from samba.errors import MissingPackage
from samba.support.strict_json import NotJson, parse_json

FORMAT, VERSION = "samba.steps", 1

_NAME = "steps.jsonl"
_START = "start"
"""The kind of the line that a process begins with."""
_ENDS = 1 << 20
"""Bytes at both ends of a file that are looked at before it is continued."""

_log = logging.getLogger("samba")


class BadStepLog(SambaError):
    """A training cannot be followed into a file.

    Args:
        path: The file, or its folder.
        problem: What was found and what to do, as a sentence.
    """

    def __init__(self, *, path: str, problem: str) -> None:
        self.path, self.problem = path, problem
        super().__init__(f"{quoted(path, 1024)}: {problem}")


class Kind(enum.Enum):
    """What a row of the log describes."""

    TRAIN = "train"
    """The runs up to an update of the weights, and the update."""
    EVAL = "eval"
    """The runs between two of these that compute losses and update nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A step of a training, or an evaluation.

    Args:
        kind: Which of the two.
        program: Name of the program.
        step: Updates that were made, this one included.
        time: When the last of its runs was started: seconds since 1970.
        seconds: From the row before it to this one; None for the first of a process.
        runs: Runs whose losses it has.
        losses: Their mean by name.
        hyperparameters: What held in the update, by name; empty for an evaluation.
    """

    kind: Kind
    program: str
    step: int
    time: float
    seconds: float | None
    runs: int
    losses: Mapping[str, float]
    hyperparameters: Mapping[str, float]

    def scalars(self) -> dict[str, float]:
        """Its figures by the name that TensorBoard shows."""
        figures = {**self.losses, **self.hyperparameters}
        if self.seconds is not None:
            figures["seconds"] = self.seconds
        return {f"{self.kind.value}/{self.program}/{name}": n for name, n in figures.items()}


class StepLog:
    """The files of a folder, open for more.

    Args:
        folder: The folder; it is made if it is not there.
        step: Updates that the training has behind it; None if it goes on where the file ends.
        tensorboard: Whether events are written; None for doing so if TensorBoard is installed.

    Attributes:
        path: The file of lines.
        last: The step with which the file ended, by program.

    Raises:
        BadStepLog: The file cannot be written, or is another one.
        MissingPackage: Events are wanted, and TensorBoard is not installed.
    """

    def __init__(
        self, folder: str, *, step: int | None = None, tensorboard: bool | None = None
    ) -> None:
        self._new_writer = None if tensorboard is False else _writer(bool(tensorboard), folder)
        self.path = os.path.join(folder, _NAME)
        self.last: dict[str, int] = {}
        self._writer: Any = None
        try:
            os.makedirs(folder, exist_ok=True)
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK)
        except OSError as error:
            raise BadStepLog(path=self.path, problem=_unwritable(error)) from None
        try:
            size, removed = self._find_end()
            self._continues = size > 0 or bool(step)
            self._write_start(step, removed)
        except OSError as error:
            os.close(self._file)
            raise BadStepLog(path=self.path, problem=_unwritable(error)) from None
        except BadStepLog:
            os.close(self._file)
            raise

    def start(self, step: int) -> None:
        """Go on from another step.

        Args:
            step: Updates that the training has behind it then.

        Raises:
            OSError: It cannot be written.
        """
        self._write_start(step, 0)
        self._continues = True
        self._close_events()

    def write(self, row: Row) -> None:
        """Append a row.

        Args:
            row: The row.

        Raises:
            OSError: It cannot be written.
        """
        line = {
            "kind": row.kind.value,
            "program": row.program,
            "step": row.step,
            "time": row.time,
            "seconds": row.seconds,
            "runs": row.runs,
            "losses": {name: _as_json(loss) for name, loss in row.losses.items()},
        }
        if row.kind is Kind.TRAIN:
            line["hyperparameters"] = {k: _as_json(v) for k, v in row.hyperparameters.items()}
        self._write_line(line)
        if self._new_writer is None:
            return
        if self._writer is None:
            # What an earlier process wrote of later steps is not part of the training any more.
            first = row.step + (row.kind is Kind.EVAL)
            purge = first if self._continues else None
            self._writer = self._new_writer(os.path.dirname(self.path), purge_step=purge)
        for tag, value in row.scalars().items():
            self._writer.add_scalar(tag, value, row.step, walltime=row.time)

    def close(self) -> None:
        """Close the files.

        Raises:
            OSError: The rest of the events cannot be written.
        """
        os.close(self._file)
        self._close_events()

    def _close_events(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _write_start(self, step: int | None, removed: int) -> None:
        start = {"kind": _START, "format": FORMAT, "version": VERSION, "time": time.time()}
        self._write_line(start | {"step": step, "removed_bytes": removed})

    def _write_line(self, value: Mapping[str, Any]) -> None:
        # One call for each line: a reader sees it whole or not at all.
        data = f"{json_text(value)}\n".encode()
        while data:
            data = data[os.write(self._file, data) :]

    def _find_end(self) -> tuple[int, int]:
        """Look at the ends of the file: its size, and the bytes of a line cut short, which go."""
        if not stat.S_ISREG(os.fstat(self._file).st_mode):
            raise BadStepLog(path=self.path, problem="it is not a file. Name another folder.")
        size = os.fstat(self._file).st_size
        head = os.pread(self._file, _ENDS, 0).partition(b"\n")
        if size and not (head[1] and _line(head[0]).get("format") == FORMAT):
            raise self._other("its first line")
        begin = max(0, size - _ENDS)
        *lines, short = os.pread(self._file, _ENDS, begin).split(b"\n")
        for text in lines[1 if begin else 0 :]:
            row = _line(text)
            if row.get("kind") not in (_START, *(kind.value for kind in Kind)):
                raise self._other("one of its last lines")
            if row["kind"] == Kind.TRAIN.value:
                name, step = row.get("program"), row.get("step")
                if not isinstance(name, str) or type(step) is not int or step < 0:
                    raise self._other("one of its last lines")
                self.last[name] = step
        if short:
            os.ftruncate(self._file, size - len(short))
        return size, len(short)

    def _other(self, what: str) -> BadStepLog:
        return BadStepLog(
            path=self.path,
            problem=f"it is damaged or not a step log: {what} was not written by `--log-dir`. "
            "Move it away, or name another folder.",
        )


def _writer(needed: bool, folder: str) -> Any:
    """The class that writes events; None, and a warning, where there is none."""
    try:
        return importlib.import_module("torch.utils.tensorboard").SummaryWriter
    except ImportError:
        missing = MissingPackage(
            what="TensorBoard output of session.follow()",
            package="tensorboard",
            extra="tensorboard",
        )
    if needed:
        raise missing
    _log.warning("%s; only %s is written", missing, Path(folder, _NAME))
    return None


def _unwritable(error: OSError) -> str:
    is_file = error.errno == errno.EEXIST
    reason = "there is a file in its folder's place" if is_file else error.strerror
    return f"it cannot be written: {reason}. Name a writable folder."


def _line(text: bytes) -> dict[str, Any]:
    """The object in a line; an empty one if there is none."""
    try:
        row = parse_json(text)
    except NotJson:
        return {}
    return row if isinstance(row, dict) else {}


def _as_json(number: float) -> float | str:
    """A number as JSON can have it: NaN and infinities are texts that ``float()`` reads.

    Example:
        >>> _as_json(0.5), _as_json(float("nan")), _as_json(float("-inf"))
        (0.5, 'NaN', '-Infinity')
    """
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
