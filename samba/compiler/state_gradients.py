"""State through which a gradient would pass from one step into the one before."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from emulator.op_facts.table import op_facts
from samba.compiler.gradient_flow import gradient_values
from samba.tracer.errors import StateGradient
from samba.tracer.traced import Traced


def refuse_state_gradients(traced: Traced, losses: Iterable[int]) -> None:
    """Refuse state that carries a gradient from step to step.

    Args:
        traced: A traced graph.
        losses: The values from which the backward pass starts.

    Raises:
        StateGradient: If a loss depends on a buffer that is given something with a gradient.
    """
    sources = {source.value: source for source in traced.sources}
    made = {v: node for node in traced.nodes for v in node.outputs if v >= 0}
    held = {
        old: new
        for new, old in traced.updates
        if old in sources and sources[old].path in traced.graded_state and new in made
    }
    if not held:
        return
    wanting = [
        replace(source, requires_grad=source.requires_grad or source.value in held)
        for source in traced.sources
    ]
    reached = gradient_values(replace(traced, sources=tuple(wanting)), op_facts(), list(losses))
    found = [old for old in held if reached[old]]
    if found:
        lines = dict.fromkeys(made[held[old]].source for old in found)
        raise StateGradient(
            where=", ".join(filter(None, lines)) or f"model {traced.name}",
            buffers=tuple(sources[old].path or sources[old].name for old in found),
        )
