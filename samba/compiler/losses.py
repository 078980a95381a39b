"""Which outputs are losses: those that the backward pass starts from with a gradient of ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pef_schema.errors import SambaError
from pef_schema.printable import some_of
from pef_schema.program import DType, Graph, Output, OutputGrad, Program

if TYPE_CHECKING:  # it loads torch, which commands that read a PEF do without
    from samba.compiler.sections import SectionedGraph

_NAMED = 8  # outputs that a warning names; a model with caches has dozens


class BadLossIndex(SambaError):
    """``loss_indices`` names an output that the model does not have."""

    def __init__(self, *, found: tuple[int, ...], outputs: int) -> None:
        self.found, self.outputs = found, outputs
        super().__init__(
            f"loss_indices: found {list(found)}; the model has {outputs} output(s), "
            f"so wanted numbers from 0 to {outputs - 1}"
        )


class ComplexLoss(SambaError):
    """``loss_indices`` names an output that is complex, from which torch starts no gradient."""

    def __init__(self, *, index: int, name: str, dtype: DType) -> None:
        self.index, self.name, self.dtype = index, name, dtype
        super().__init__(
            f"loss_indices: output {index} ({name}) is {dtype.name.lower()}, wanted real numbers: "
            "the gradient of a loss starts from ones. Return its real part or absolute value; a "
            "gradient for the complex output itself goes into its sn_grad."
        )


def choose_losses(graph: SectionedGraph, given: tuple[int, ...] | None) -> frozenset[int]:
    """The outputs whose gradients start as ones.

    Args:
        graph: The graph.
        given: ``loss_indices``; None to find them by shape.

    Returns:
        Those given; else, among the real floating outputs that carry a gradient, the scalars if
        there are any and all of them otherwise.

    Raises:
        BadLossIndex: If there is no output of a given number.
        ComplexLoss: If one of those given is complex.
    """
    outputs = graph.traced.outputs
    if given is not None:
        if any(i < 0 or i >= len(outputs) for i in given):
            raise BadLossIndex(found=given, outputs=len(outputs))
        for i in given:
            dtype = graph.traced.values[outputs[i].value].dtype
            if dtype.is_complex:
                raise ComplexLoss(index=i, name=outputs[i].name, dtype=dtype)
        return frozenset(given)
    # A scalar without a gradient, such as an accuracy, is no loss: backward from it is nothing.
    able = [
        i
        for i, o in enumerate(outputs)
        if graph.starts_backward(o.value) and graph.traced.values[o.value].dtype.is_floating
    ]
    scalars = [i for i in able if graph.traced.values[outputs[i].value].shape == ()]
    return frozenset(scalars or able)


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
