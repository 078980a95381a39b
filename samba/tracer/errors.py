"""Errors of tracing: what in the model cannot become a static graph, and where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pef_schema.errors import SambaError

DEPENDS_ON_DATA = "the shape of its result depends on data"
"""Why an operation is refused whose result has no fixed size."""


class TraceError(SambaError):
    """The model could not be traced.

    Its traceback ends with the lines of ``forward``; those of torch's exporter are left out. What
    torch raised is kept as ``__context__``, and is logged at level ``debug``.

    Attributes:
        where: The user's ``file:line`` or module path.
        reason: What torch said.
    """

    deviation = "untraceable"

    def __init__(self, *, where: str, reason: str, hint: str) -> None:
        self.where, self.reason, self.hint = where, reason, hint
        super().__init__(f"{where}: {reason}\n{hint}")


class DataDependentBranch(TraceError):
    """``forward`` decides by the value of a tensor, which a static graph cannot."""

    deviation = "data-dependent-branch"


class ShapeMismatch(TraceError, RuntimeError):
    """An operation in ``forward`` got tensors whose shapes do not fit; torch's own text is kept."""


class InPlaceWithoutGradient(TraceError):
    """``forward`` changes a tensor in place behind its gradient: detached, or without gradients.

    Attributes:
        lines: The user's lines with their operations.
    """

    deviation = "in-place-without-gradient"

    def __init__(self, *, lines: Sequence[str]) -> None:
        self.lines = tuple(lines)
        super().__init__(
            where=", ".join(self.lines),
            reason="a tensor that has a gradient, or may have one, is changed in place under "
            "torch.no_grad(), or through detach() or .data; torch then uses the gradient of the "
            "old values, which a functional graph cannot.",
            hint="Make a new tensor, such as x + (changed - x).detach(); change a buffer itself, "
            "buffer.add_(values), and a parameter in the script, between runs.",
        )


class DroppedItself(TraceError):
    """``forward`` changes in place what torch's dropout of rate 0 returns, or what it was given."""

    deviation = "dropped-itself"

    def __init__(self, *, where: str, operation: str) -> None:
        super().__init__(
            where=where,
            reason=f"{operation} changes the input or the result of a dropout of rate 0 in place, "
            "and the other of the two is used afterwards. At rate 0 torch's dropout returns its "
            "input, so both change; at other rates, which a run may set, it returns a new tensor",
            hint="Make a new tensor: x = x + y instead of x += y.",
        )


class StateGradient(TraceError):
    """``forward`` writes what has a gradient into a buffer that a loss depends on.

    Attributes:
        buffers: Names of such buffers.
    """

    deviation = "state-gradient"

    def __init__(self, *, where: str, buffers: Sequence[str]) -> None:
        self.buffers = tuple(buffers)
        super().__init__(
            where=where,
            reason=f"forward() writes a value with a gradient into {', '.join(buffers)}, and a "
            "loss depends on it: torch's next backward pass continues into the previous step, and "
            "raises or adds to its gradients; a program holds one step",
            hint="Detach the value before writing it: h.detach(), or use torch.no_grad().",
        )


class OverwrittenValue(TraceError, RuntimeError):
    """``forward`` changes in place what the gradient reads; torch's own text is kept.

    Attributes:
        lines: The user's lines that change something in place, with their operations.
    """

    def __init__(self, *, lines: Sequence[str], reason: str) -> None:
        self.lines = tuple(lines)
        super().__init__(
            where=", ".join(self.lines),
            reason=reason,
            hint="loss.backward() raises this in torch, too (behind a change through .data it "
            "computes with the changed values): compute with a copy (x.clone()), or make a new "
            "tensor instead of changing this one.",
        )


class StridedViewError(TraceError):
    """``as_strided``, or a change through ``unfold``, that the values of a graph cannot say."""

    deviation = "strided-view"


class DtypeMismatch(TraceError, RuntimeError):
    """An operation in ``forward`` got tensors whose dtypes do not fit; torch's text is kept."""


class UntracedFunction(TraceError):
    """``forward`` calls a function that eager torch runs and its exporter cannot trace.

    Attributes:
        function: Its name.
    """

    deviation = "untraced-function"

    def __init__(self, *, where: str, function: str, hint: str) -> None:
        self.function = function
        super().__init__(
            where=where, reason=f"forward() calls {function}, which cannot be traced", hint=hint
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsupportedOp:
    """One operation without a lowering, how often it occurs, where, and why."""

    name: str
    count: int
    lines: tuple[str, ...]
    reason: str = ""


class UnsupportedOps(TraceError):
    """Operations without a lowering, all of them at once.

    Attributes:
        ops: One :class:`UnsupportedOp` each, most frequent first.
    """

    deviation = "unsupported-operation"

    def __init__(self, *, model: str, ops: Sequence[UnsupportedOp]) -> None:
        self.ops = tuple(ops)
        listing = "\n".join(
            f"  {op.name}  x{op.count}  at {', '.join(op.lines) or 'an unknown line'}"
            + (f": {op.reason}" if op.reason else "")
            for op in self.ops
        )
        super().__init__(
            where=f"model {model}",
            reason=f"{len(self.ops)} operation(s) have no lowering:\n{listing}",
            hint="Rewrite these lines with supported operations, "
            "or add a lowering in emulator/ops (see docs/changing.md).",
        )


class GradientError(TraceError):
    """A gradient that the model defines itself cannot become part of a static graph.

    Attributes:
        deviation: Name of the row in ``docs/deviations.md``.
    """

    def __init__(self, *, where: str, reason: str, hint: str, deviation: str) -> None:
        self.deviation = deviation
        super().__init__(where=where, reason=reason, hint=hint)
