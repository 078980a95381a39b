"""The findings of a comparison: plain data, for people and for programs."""

from __future__ import annotations

import dataclasses
import enum
import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pef_schema.module_paths import plain_path
from pef_schema.printable import json_text, one_line, printable
from samba.support.layout import table

_SHOWN = 12
"""Rows that ``str`` shows of what is beyond tolerance, and of the largest accumulated errors."""


class Phase(enum.Enum):
    """The things that rows compare, in the order in which causes are looked for."""

    FORWARD = "forward"
    """A result of an operation."""
    BACKWARD = "backward"
    """The gradients that an operation passes on to its inputs."""
    COMPILED = "compiled"
    """An output or a gradient of the compiled program, all sections together."""
    MODEL = "model"
    """The traced graph, run by torch, against the model itself."""


class Status(enum.Enum):
    """The verdict on a row."""

    OK = "ok"
    BEYOND = "beyond tolerance"
    NOT_FINITE = "NaN or inf on one side only"
    DTYPE = "another dtype"
    SHAPE = "another shape"
    FAILED = "failed"
    """The device raised an error instead of computing it."""
    DRAWN = "random numbers"
    """The device draws them and torch takes them from it; only shape and dtype are compared."""
    EXPECTED = "expected difference"
    """The arithmetic that was asked for differs from torch's."""

    @property
    def is_wrong(self) -> bool:
        """Whether the two sides disagree."""
        return self not in (Status.OK, Status.DRAWN, Status.EXPECTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """How far the device is from torch.

    Args:
        largest: Largest absolute difference; NaN if one side alone is not finite somewhere.
        relative: That of the tensors' norms: ``|device - torch| / |torch|``.
        index: Where the difference is worst.
        device, torch: Values there.
        wrong: Elements beyond tolerance.
        elements: Elements in all.
        allowed: What was allowed at ``index``.
    """

    largest: float
    relative: float
    index: tuple[int, ...]
    device: complex
    torch: complex
    wrong: int
    elements: int
    allowed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """A tensor in numbers; those of no element are NaN."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    minimum: float
    maximum: float
    mean: float
    std: float
    nans: int
    infs: int

    def __str__(self) -> str:
        text = (
            f"{one_line(self.name)}  {self.dtype}{list(self.shape)}  min {self.minimum:.4g}  "
            f"max {self.maximum:.4g}  mean {self.mean:.4g}  std {self.std:.4g}"
        )
        return text + (f"  NaN {self.nans}  inf {self.infs}" if self.nans or self.infs else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One thing compared.

    Args:
        phase: What kind of thing.
        node: Number of the operation in the graph; -1 for a whole program or model.
        op: Name of the operation; empty for a whole.
        name: Name of the tensor: a result, or the input whose gradient it is.
        module: Module that called the operation.
        source: ``file:line`` of the user's code; empty if unknown.
        dtype, shape: Torch's; empty if the program failed.
        status: The verdict.
        detail: More about it, as a sentence; may be empty.
        local: The difference when the device starts from torch's inputs: the operation's own.
        whole: The difference when the device starts from its own: what has accumulated so far.
        inputs: What went into the operation, on torch's side; only for rows that are wrong and
            for the first that is not finite.
        nonfinite: NaN and infinite elements on torch's side and on the device's.
    """

    phase: Phase
    node: int = -1
    op: str = ""
    name: str
    module: str = ""
    source: str = ""
    dtype: str = ""
    shape: tuple[int, ...] = ()
    status: Status
    detail: str = ""
    local: Gap | None = None
    whole: Gap | None = None
    inputs: tuple[Statistics, ...] = ()
    nonfinite: tuple[int, int] = (0, 0)

    @property
    def place(self) -> str:
        """The part of the comparison that a row belongs to, in a few words."""
        node = f" node {self.node}" if self.node >= 0 else ""
        return f"{self.phase.value}{node}"

    def lines(self) -> list[str]:
        """The row in full."""
        what = "gradient of" if self.phase is Phase.BACKWARD else "result"
        lines = [f"{self.place}, {one_line(self.op)}: {self.status.value}"]
        if self.module:
            lines.append(f"  module   {one_line(plain_path(self.module))}")
        if self.source:
            lines.append(f"  line     {one_line(self.source)}")
        lines.append(f"  {what:8} {one_line(self.name)}  {self.dtype}{list(self.shape)}")
        if self.local is not None:
            lines.append(f"  error    {_gap(self.local)}")
        if self.whole is not None:
            label = "so far" if self.local is not None else "error"
            lines.append(f"  {label:8} {_gap(self.whole)}")
        if any(self.nonfinite):
            lines.append(
                f"  NaN, inf {self.nonfinite[0]} in torch, {self.nonfinite[1]} on the device"
            )
        if self.detail:
            lines.append(f"  {self.detail}")
        lines += [f"  input    {statistics}" for statistics in self.inputs]
        return lines


def _gap(gap: Gap) -> str:
    where = f" at {list(gap.index)}" if gap.index else ""
    text = f"{gap.largest:.3g}{where}: device {gap.device:.8g}, torch {gap.torch:.8g}"
    if gap.wrong:
        text += f"; {gap.wrong} of {gap.elements} elements beyond (allowed here {gap.allowed:.3g})"
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The result of ``samba.utils.compare``.

    Args:
        model: Name of the model.
        rows: Everything compared: the forward pass in order, the backward pass in its order, the
            compiled program, the model.
        notes: What was done to make the two sides comparable, and what could not be compared.
    """

    model: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    @property
    def first(self) -> Row | None:
        """The first row that is wrong, where the results start to differ; None if all agree."""
        return next((row for row in self.rows if row.status.is_wrong), None)

    @property
    def first_nonfinite(self) -> Row | None:
        """The first row with a NaN or an infinite number on either side, wrong or not."""
        return next((row for row in self.rows if any(row.nonfinite)), None)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return self.first is None

    def __str__(self) -> str:
        return self.text()

    def text(self, *, all_rows: bool = False) -> str:
        """The report for a terminal.

        Args:
            all_rows: Whether the table has every row, not only those worth a look.

        Returns:
            Lines without a newline at the end.
        """
        counts = {phase: sum(row.phase is phase for row in self.rows) for phase in Phase}
        tested = ", ".join(f"{n} {phase.value}" for phase, n in counts.items() if n)
        lines = [f"{one_line(self.model)}: compared {tested or 'nothing'}"]
        first = self.first
        if first is None:
            lines.append("no operation is beyond its tolerance")
        else:
            lines += ["", "first that differs: " + "\n".join(first.lines())]
        odd = self.first_nonfinite
        if odd is not None and odd is not first:
            lines += ["", "first NaN or inf: " + "\n".join(odd.lines())]
        shown = self.rows if all_rows else self._worth_a_look()
        if shown:
            title = "all rows" if all_rows else "beyond tolerance, or largest accumulated error"
            lines += ["", f"{title}:", *_table(shown)]
        lines += [f"note: {note}" for note in self.notes]
        return printable("\n".join(lines))

    def _worth_a_look(self) -> list[Row]:
        wrong = [row for row in self.rows if row.status.is_wrong][:_SHOWN]
        drifting = sorted(
            (row for row in self.rows if row.whole is not None and row.whole.relative > 0),
            key=lambda row: -row.whole.relative if row.whole is not None else 0.0,
        )[:_SHOWN]
        chosen = {id(row) for row in (*wrong, *drifting)}
        expected = [row for row in self.rows if row.status is Status.EXPECTED][:_SHOWN]
        chosen |= {id(row) for row in expected}
        return [row for row in self.rows if id(row) in chosen]

    def to_json(self) -> str:
        """The report as JSON: ``model``, ``ok``, ``first``, ``rows``, ``notes``.

        ``first`` is a position in ``rows`` or null; numbers that JSON lacks are the strings
        ``"nan"``, ``"inf"`` and ``"-inf"``, and complex ones are strings such as ``"(1-2j)"``.
        """
        first = self.first
        report = {
            "model": self.model,
            "ok": self.ok,
            "first": None if first is None else self.rows.index(first),
            "rows": [_plain(dataclasses.asdict(row)) for row in self.rows],
            "notes": list(self.notes),
        }
        return json_text(report, indent=1)


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, complex):
        return str(value)
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _table(rows: Iterable[Row]) -> list[str]:
    head = ("", "op", "tensor", "own error", "accumulated", "verdict")
    cells = [
        (row.place, row.op, row.name, _error(row.local), _error(row.whole), row.status.value)
        for row in rows
    ]
    return [f"  {line}" for line in table(head, cells, width=sys.maxsize).splitlines()]


def _error(gap: Gap | None) -> str:
    return "-" if gap is None else f"{gap.relative:.2g}"
