"""Whether the model at hand is the one that a PEF was compiled from, and why it is not."""

from __future__ import annotations

from collections.abc import Sequence

from pef_schema import first_difference
from pef_schema.errors import SambaError
from pef_schema.fingerprint import renamed
from pef_schema.program import Program
from samba.session.check_pef import changed_constants
from samba.session.forward_arguments import without_gradient_arguments
from samba.support.autocast import AUTOCAST, autocast_in_force
from samba.tracer.traced import Traced


class GraphMismatch(SambaError):
    """The model traces to another graph than the PEF was compiled from.

    Attributes:
        pef: Path of the PEF.
        difference: What differs first.
    """

    deviation = "changed-model"

    def __init__(self, *, pef: str, difference: object, advice: str = "", found: str = "") -> None:
        self.pef, self.difference = pef, difference
        advice = advice or (
            "Compile again, or run the model, input shapes (batch size: -b) and mode "
            "(train or inference) that were compiled."
        )
        found = found or "the model is not the one this PEF was compiled from"
        super().__init__(f"{pef}: {found}.\n{difference}\n{advice}")


class NamesMismatch(GraphMismatch):
    """The model computes what the PEF was compiled from, under other names.

    Attributes:
        names: Compiled name and name at hand of each tensor.
    """

    def __init__(self, *, pef: str, names: Sequence[tuple[str, str]]) -> None:
        self.names = tuple(names)
        rows = [f"  {compiled} is {traced} here" for compiled, traced in names[:_SHOWN]]
        if len(names) > _SHOWN:
            rows.append(f"  and {len(names) - _SHOWN} more")
        super().__init__(
            pef=pef,
            found="the model computes what this PEF was compiled from, only names differ",
            difference="\n".join(rows),
            advice="Names are made of the names of the model's class, of its attributes and of "
            "its inputs: was one renamed? Compile again, or give back the old name.",
        )


class AutocastMismatch(GraphMismatch):
    """``torch.autocast`` was in force when the model was compiled and is not now, or other way."""

    deviation = "autocast-mismatch"

    def __init__(self, *, pef: str, compiled: str, now: str, difference: object) -> None:
        self.compiled, self.now = compiled, now
        super().__init__(
            pef=pef,
            found=f"this PEF was compiled {_with_autocast(compiled)}, trace_graph is called "
            f"{_with_autocast(now)}",
            difference=difference,
            advice="torch.autocast acts while a model is traced, and no longer when it runs: put "
            "it into forward(), or around both session.compile and trace_graph.",
        )


def _with_autocast(dtype: str) -> str:
    return f"with torch.autocast in {dtype}" if dtype else "without torch.autocast"


_SHOWN = 4
"""Names that a message lists."""


def refuse_other_graph(traced: Traced, program: Program, *, pef: str) -> None:
    """Raise unless a model computes what the only graph of a program does.

    Args:
        traced: The model's trace.
        program: The program from the PEF.
        pef: Its path.

    Raises:
        AutocastMismatch: If ``torch.autocast`` may be why.
        NamesMismatch: If only names differ.
        GraphMismatch: If the graph differs otherwise, or constants have other contents.
    """
    graph, given = program.graphs[0], traced.graph()
    if program.inference:
        graph, given = without_gradient_arguments(graph), without_gradient_arguments(given)
    difference = first_difference(graph, given)
    if difference is not None:
        compiled, now = dict(program.metadata).get(AUTOCAST, ""), autocast_in_force()
        if compiled != now:
            raise AutocastMismatch(pef=pef, compiled=compiled, now=now, difference=difference)
        if names := renamed(graph, given):
            raise NamesMismatch(pef=pef, names=names)
        raise GraphMismatch(pef=pef, difference=difference)
    if changed := changed_constants(traced, graph, program):
        raise GraphMismatch(pef=pef, difference=changed)
