"""The state that the parts of a session share: its loaded program, and counts of its work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from emulator.handler_errors import HANDLER_ERRORS
from emulator.held_signals import HELD
from pef_schema import read_info, read_pef
from pef_schema.garbage import SELDOM_COLLECTED
from pef_schema.program import Program
from samba.errors import NotLoaded
from samba.profiler import PROFILER
from samba.sambatensor import SambaTensor
from samba.session.graphs import Traces
from samba.session.metrics import MetricsBook
from samba.session.onnx_model import OnnxModels
from samba.support import tracing
from samba.tensor.device_memory import hide_memory, show_memory

if TYPE_CHECKING:
    from pef_schema.program import Program
    from samba.session.loaded import (
        Loaded,  # loads jax, which a session without a program needs not
    )


def parse_pef(path: str) -> Program:
    """Parse a PEF.

    Args:
        path: Its path, relative to the working directory or absolute.

    Returns:
        The program in it.

    Raises:
        PefError: There is no such file, or it is not a whole PEF of a known version.
    """
    with PROFILER.event("SAMBA_SET_PEF"):
        return read_pef(Path(path).absolute())


def parse_with_digest(path: str) -> tuple[Program, str]:
    """Parse a PEF, and say which one it is.

    Args:
        path: As for :func:`parse_pef`.

    Returns:
        The program and the digest of the file, which is empty if another file has taken its place
        in the meantime.

    Raises:
        PefError: As for :func:`parse_pef`.
    """
    absolute = Path(path).absolute()
    before = read_info(absolute).digest
    program = parse_pef(path)
    return program, before if read_info(absolute).digest == before else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Counts of a session's work since it was made or reset.

    Args:
        traces: Models traced, by ``compile`` and ``trace_graph``.
        compiles: Plans that XLA compiled: one for each different selection of sections.
        runs: Runs that took place, each of them wholly; also those that an interrupt came after.
    """

    traces: int
    compiles: int
    runs: int


class ProgramSlot:
    """The program that a session has on the device, if any, and the host tensors it mirrors.

    Args:
        book: Where the session's work is taken down; a new one if None.

    Attributes:
        book: That book.
        loaded: The loaded program; None before ``trace_graph``.
        tensors: Traced host tensors by name: inputs, parameters, buffers and output handles.
        forgotten: Names of tensors that ``to_device`` leaves out.
        traces: Traces of modules for several graphs; None if there are none.
        onnx: Torch models in the place of ONNX models.
    """

    def __init__(self, book: MetricsBook | None = None) -> None:
        self.book = MetricsBook() if book is None else book
        self._pef_path = ""
        self._parsed: Program | None = None
        self.loaded: Loaded | None = None
        self.tensors: dict[str, SambaTensor] = {}
        self.forgotten: set[str] = set()
        self.traces: Traces | None = None
        self.onnx = OnnxModels()
        self._traced = self._compiles = self._runs = 0

    @property
    def pef_path(self) -> str:
        """The PEF that was loaded or compiled last, or the one given."""
        return self._pef_path

    @pef_path.setter
    def pef_path(self, path: str) -> None:
        self._pef_path, self._parsed = path, None

    def open(self, path: str) -> None:
        """Parse a PEF, to use it where none is named.

        Raises:
            PefError: There is no such file, or it is not a whole PEF of a known version.
        """
        self._parsed, self._pef_path = parse_pef(path), path

    def program(self, operation: str) -> Program:
        """The loaded program; if there is none, that of the PEF which the session names.

        Args:
            operation: Who asks, for the error.

        Raises:
            NotLoaded: There is neither.
            PefError: The file is not a whole PEF of a known version.
        """
        if self.loaded is not None:
            return self.loaded.program
        if not self._pef_path:
            raise NotLoaded(operation=operation)
        if self._parsed is None:
            self._parsed = parse_pef(self._pef_path)
        return self._parsed

    def need(self, operation: str) -> Loaded:
        """The loaded program.

        Args:
            operation: Who asks, for the error.

        Raises:
            NotLoaded: There is none.
        """
        if self.loaded is None:
            raise NotLoaded(operation=operation)
        return self.loaded

    def refuse_inside(self, operation: str) -> None:
        """Refuse to load something else in the middle of a run of the same thread.

        Args:
            operation: What is about to be done.

        Raises:
            SessionInUse: In the middle of a run.
        """
        if self.loaded is not None:
            self.loaded.turns.refuse_inside(operation)

    def take(self, loaded: Loaded, pef_path: str) -> None:
        """Make a loaded program the session's, and the one that SambaTensors see.

        Args:
            loaded: The program.
            pef_path: Its PEF.
        """
        if self.loaded is not None:
            self.loaded.turns.close("load()")
        with HELD:  # a signal finds the old program or the new one
            counted = self.counters
            self._compiles, self._runs = counted.compiles, counted.runs
            self.close()
            self.loaded = loaded
            self.pef_path = pef_path  # what was parsed before may be another file by now
            self.forgotten = set()
            self.tensors = loaded.tensors_by_name()
            show_memory(loaded)
            self.book.add(loaded.device)
            self.book.note_rank(loaded.replicas.rank, loaded.replicas.size)

    def close(self) -> None:
        """Take the program off the device."""
        if self.loaded is not None:
            self.loaded.turns.close()
            if PROFILER.follower is not None:
                PROFILER.follower.settle()
            hide_memory(self.loaded)
            self.loaded.close()
            self.loaded = None

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Count a trace; ``session.tracing`` is True inside."""
        self._traced += 1
        with SELDOM_COLLECTED, HANDLER_ERRORS, self.book.tracing(), tracing.tracing():
            yield

    @property
    def counters(self) -> Counters:
        """How often models were traced, and plans compiled and run."""
        device = None if self.loaded is None else self.loaded.device.counters
        return Counters(
            traces=self._traced,
            compiles=self._compiles + (0 if device is None else device.compiles),
            runs=self._runs + (0 if device is None else device.runs),
        )
