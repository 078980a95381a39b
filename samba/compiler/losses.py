"""What is said of the losses of a program: the outputs whose gradients start as ones."""

from __future__ import annotations

from collections.abc import Sequence

from pef_schema.printable import some_of
from pef_schema.program import Graph, Output, OutputGrad, Program

_NAMED = 8  # outputs that a warning names; a model with caches has dozens


def losses_line(program: Program) -> str:
    """The losses of a program in one line, as ``position:name``; empty where there can be none."""
    if program.inference or not program.graphs:
        return ""
    return "losses: " + (", ".join(_losses(program.graphs[0])) or "none")


def doubtful_losses(program: Program, *, trained: bool) -> str:
    """What to tell a user who gave no ``loss_indices``: what was chosen, and how to choose.

    Args:
        program: The program, whose losses were found by shape.
        trained: Whether an optimizer was compiled with it.

    Returns:
        A warning; empty where there was nothing to choose.
    """
    if program.inference:
        return ""
    graph = program.graphs[0]
    losses = _losses(graph)
    named = some_of(losses, _NAMED)
    if not losses:
        if not trained:
            return ""
        return (
            f"{program.name}: no floating point output depends on a trained parameter, so there "
            "is no loss and the optimizers get no gradients. Return the loss from forward(); "
            "session.compile(loss_indices=[...]) chooses among several"
        )
    if len(losses) == 1:
        return ""
    if any(_is_scalar(graph, o) for o in graph.outputs if o.grad is OutputGrad.ONES):
        why = f"{len(losses)} outputs are scalars, and each"
    else:
        why = "no output is a scalar, so each floating point output"
    return (
        f"{program.name}: {why} is a loss whose gradient starts from ones: {named}. "
        "Choose others by their positions with session.compile(loss_indices=[...])"
    )


def lost_losses(program: Program, indices: Sequence[int]) -> str:
    """What to tell a user whose ``loss_indices`` choose outputs without a gradient.

    Args:
        program: The program.
        indices: The outputs that were chosen.

    Returns:
        A warning; empty where every output that was chosen has one.
    """
    if program.inference:
        return ""
    outputs = program.graphs[0].outputs
    lost = [f"{i}:{outputs[i].name}" for i in indices if outputs[i].grad is not OutputGrad.ONES]
    return (
        f"{program.name}: loss_indices={list(indices)} chooses outputs that depend on no trained "
        f"parameter, so no gradient starts there: {some_of(lost, _NAMED)}. Positions count from 0"
        if lost
        else ""
    )


def _losses(graph: Graph) -> list[str]:
    return [f"{i}:{o.name}" for i, o in enumerate(graph.outputs) if o.grad is OutputGrad.ONES]


def _is_scalar(graph: Graph, output: Output) -> bool:
    return graph.values[output.value].shape == ()
