"""The facts of every op that has a lowering, by name."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType

from emulator.op_facts._generated import GROUPS
from emulator.op_facts.facts import OpFacts


@functools.cache
def op_facts() -> Mapping[str, OpFacts]:
    """All ops that have a lowering, with their facts.

    Returns:
        A read-only mapping from full ATen names.

    Example:
        >>> op_facts()["aten.mul.Tensor"].linear_in
        (0, 1)
        >>> "aten.no_such_op.default" in op_facts()
        False
    """
    return MappingProxyType({name: facts for facts, names in GROUPS for name in names.split()})
