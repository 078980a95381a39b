"""Gradients of outputs that a script gives to a run itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from pef_schema.program import Output, Program
from samba.errors import ArgumentError, NoGradient
from samba.session.given_values import fitting
from samba.session.request import listed
from samba.support.deviations import Deviations
from samba.tensor.views import read_as_numpy

__all__ = ["Seeds", "seeds_of"]

Seeds = Sequence[tuple[int, np.ndarray, str]]
"""Gradients of outputs: regions, values, and names for errors."""


def seeds_of(
    outputs: Sequence[Output], grads: Any, program: Program, deviations: Deviations
) -> Seeds:
    """Gradients that a script has given for outputs, ready for their regions.

    Args:
        outputs: The outputs of a graph.
        grads: What ``session.run(grad_of_outputs=...)`` was given.
        program: The program that they are of.
        deviations: What has been told of casts.

    Returns:
        Regions, values, and names for errors.

    Raises:
        ArgumentError: If they are no tensors, or more than there are outputs.
        NoGradient: If an output has no gradient.
    """
    where = "session.run(grad_of_outputs=...)"
    if isinstance(grads, torch.Tensor):
        grads = (grads,)
    grads = listed(grads, where)
    if len(grads) > len(outputs):
        raise ArgumentError(
            where=where,
            found=f"{len(grads)} gradients",
            wanted=f"at most one for each of the {len(outputs)} outputs",
            hint="Give them in the order of the outputs, None for those without one.",
        )
    seeds = []
    for output, grad in zip(outputs, grads, strict=False):
        if grad is None:
            continue
        if not isinstance(grad, torch.Tensor):
            raise ArgumentError(
                where=where, found=f"a {type(grad).__name__}", wanted="tensors or None"
            )
        if output.grad_region < 0:
            raise NoGradient(operation=where, name=output.name)
        name = f"{output.name}__grad"
        region = program.regions[output.grad_region]
        grad = fitting(grad, region, name=name, deviations=deviations)
        seeds.append((output.grad_region, read_as_numpy(grad, name), name))
    return seeds
