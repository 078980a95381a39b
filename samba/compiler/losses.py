"""What is said of the losses of a program: the outputs whose gradients start as ones."""

from __future__ import annotations

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


def _losses(graph: Graph) -> list[str]:
    return [f"{i}:{o.name}" for i, o in enumerate(graph.outputs) if o.grad is OutputGrad.ONES]


def _is_scalar(graph: Graph, output: Output) -> bool:
    return graph.values[output.value].shape == ()
