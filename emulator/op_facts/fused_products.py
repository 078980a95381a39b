"""Products of ops that make several of them: attention and recurrent layers."""

from __future__ import annotations

import math

from emulator.op_facts.node_arguments import NamedArgs, Place
from emulator.op_facts.products import Part, Products, aligned, at_positions

__all__ = ["attention", "cell", "is_projected", "recurrent"]


def attention(at: NamedArgs) -> Products:
    """Two products, four in the gradient; what a causal mask hides is computed, and counted.

    The gradient reads the softmax, which no section keeps: it makes the scores again.
    """
    q, k, v = at.shape(0), at.shape(1), at.shape(2)
    lead = math.prod(max(i, j) if i and j else 0 for i, j in aligned(q[:-2], k[:-2]))
    if at.given(-1, "enable_gqa") is True:
        lead = math.prod(q[:-2])
    pairs = 2 * lead * q[-2] * k[-2]
    scores, mixed = pairs * q[-1], pairs * v[-1]
    return Products(
        forward=scores + mixed,
        gradient=(
            Part(wanted=at_positions(0, 1, 3), flops=mixed),
            Part(wanted=at_positions(2), flops=mixed),
            Part(wanted=at_positions(0), flops=scores),
            Part(wanted=at_positions(1), flops=scores),
        ),
        again=scores,
        operand=at.dtype(0),
    )


def recurrent(at: NamedArgs) -> Products:
    """Layers over time: for each, the product with its inputs and that with its states.

    The gradient of the state goes from step to step, so one product a step; that of the first
    state is counted where somebody wants it.
    """
    x, biased = at.shape(0), at.given(3) is True
    layers = at.given(4)
    directions = 2 if at.given(7) is True else 1
    projected = is_projected(at)
    each = (4 if biased else 2) + projected
    params = at.shapes(2)
    steps, batch = (x[1], x[0]) if at.given(8) is True else (x[0], x[1])
    forward, parts = 0, list[Part]()
    below: set[Place] = {(0, 0)}
    """What the inputs of a layer come from."""
    for layer in range(min(layers, len(params)) if isinstance(layers, int) else 0):
        here = set[Place]()
        for direction in range(directions):
            first = (layer * directions + direction) * each
            if first + 1 >= len(params):
                break
            gates, features = params[first]
            hidden = params[first + 1][1]
            of_inputs = 2 * steps * batch * features * gates
            of_one = 2 * batch * hidden * gates
            of_projection = 0
            if projected and first + each <= len(params):
                of_projection = 2 * batch * math.prod(params[first + each - 1])
            forward += of_inputs + steps * (of_one + of_projection)
            own = {(2, first + i) for i in range(each)}
            starts = {(1, item) for item in range(max(len(at.shapes(1)), 1))}
            here |= own | starts
            parts += [
                Part(wanted=frozenset({(2, first)}), flops=of_inputs),
                Part(wanted=frozenset({(2, first + 1)}), flops=steps * of_one),
                Part(wanted=frozenset(below), flops=of_inputs),
                Part(wanted=frozenset(below | own | starts), flops=max(steps - 1, 0) * of_one),
                Part(wanted=at_positions(1), flops=of_one),
            ]
            if of_projection:
                wanted = frozenset(below | own | starts)
                parts += [
                    Part(wanted=frozenset({(2, first + each - 1)}), flops=steps * of_projection),
                    Part(wanted=wanted, flops=steps * of_projection),
                ]
        below |= here
    return Products(forward=forward, gradient=tuple(parts), again=forward, operand=at.dtype(0))


def is_projected(at: NamedArgs) -> bool:
    """Whether the h of a recurrent layer is narrower than its c: both are given in position 1."""
    states = at.shapes(1)
    return len(states) == 2 and states[0][-1:] != states[1][-1:]


def cell(at: NamedArgs) -> Products:
    x, hidden, w_ih, w_hh = at.shape(0), at.shape(1), at.shape(2), at.shape(3)
    of_inputs, of_state = 2 * math.prod(x) * w_ih[0], 2 * math.prod(hidden) * w_hh[0]
    return Products(
        forward=of_inputs + of_state,
        gradient=(
            Part(wanted=at_positions(0), flops=of_inputs),
            Part(wanted=at_positions(2), flops=of_inputs),
            Part(wanted=at_positions(1), flops=of_state),
            Part(wanted=at_positions(3), flops=of_state),
        ),
        again=of_inputs + of_state,
        operand=at.dtype(0),
    )
