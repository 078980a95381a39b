"""Update rules of the optimizers, with torch's arithmetic in torch's order.

Each rule mirrors the single-tensor path of the torch optimizer of the same name; qadam's mirrors
``samba.distributed.bagua.QAdamOptimizer``. ``parameters.py`` says in which types they compute.
Every module of this folder is read, a new one too.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import replace

import jax
import jax.numpy as jnp

from emulator.dtypes import TO_NUMPY
from emulator.lowering.branch_checks import any_failed
from emulator.lowering.section import State
from emulator.lowering.update_rules.parameters import RULES, Update, wide
from emulator.lowering.variant import Variant
from emulator.ops._reduction import reduce_all
from pef_schema.program import Program, Step


def update(program: Program, step: Step, state: State, variant: Variant) -> State:
    """Execute an OPT step.

    Args:
        program: The program.
        step: The step. Of its optimizers it updates the weights that it writes, and counts a
            step where it writes the count; several steps may share an optimizer.
        state: Weights, gradients, optimizer states, step counts and argins.
        variant: Which optimizers keep no momentum, and the regions of checked branches.

    Returns:
        Updated weights, states and step counts; the old ones where a branch went the other way.
    """
    result: State = {}
    failed = any_failed(variant.checks, state)
    writes = set(step.writes)
    for index in step.optimizers:
        optimizer = program.optimizers[index]
        here = tuple(p for p in optimizer.params if p.weight in writes)
        if len(here) < len(optimizer.params):
            optimizer = replace(optimizer, params=here)
        with jax.named_scope(optimizer.name):
            RULES[optimizer.kind](
                Update(
                    optimizer=optimizer,
                    state=state,
                    failed=failed,
                    no_momentum=index in variant.no_momentum,
                    result=result,
                )
            )
        if optimizer.step not in writes:
            result.pop(optimizer.step, None)
    return result


def gradnorm(program: Program, step: Step, state: State) -> State:
    """Execute a GRADNORM step: scale gradients so that their 2-norm is at most ``step.max_norm``.

    The formula is ``torch.nn.utils.clip_grad_norm_``'s:
    ``grad * min(1, max_norm / (norm + 1e-6))``. float64 gradients have a float64 norm.
    """
    grads = step.reads
    norm = jnp.sqrt(sum(reduce_all(_squares(wide(state[r]))) for r in grads))
    scale = jnp.minimum(step.max_norm / (norm + 1e-6), 1.0)
    result: State = {r: state[r] * scale.astype(state[r].dtype) for r in grads}
    for region in step.writes:
        if region not in result:
            result[region] = norm.astype(TO_NUMPY[program.regions[region].dtype])
    return result


def _squares(array: jax.Array) -> jax.Array:
    """Squares of absolute values."""
    if not jnp.iscomplexobj(array):
        return jnp.square(array)
    return jnp.square(array.real) + jnp.square(array.imag)


def zerograd(program: Program, step: Step) -> State:
    """Execute a ZEROGRAD step."""
    result: State = {}
    for r in step.writes:
        region = program.regions[r]
        result[r] = jnp.zeros(region.shape, TO_NUMPY[region.dtype])  # pyright: ignore[reportUnknownMemberType]  # jax types it in part
    return result


for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")  # each puts its rules into RULES
