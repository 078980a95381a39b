"""Matrix products and convolutions of a plan, with what each says of its precision."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
from jax._src.core import jaxprs_in_params
from jax._src.lib.mlir import ir  # pyright: ignore[reportPrivateImportUsage]  # jax has no other
from jax.lax import Precision

HIGHEST = (Precision.HIGHEST, Precision.HIGHEST)

_PRODUCTS = ("dot_general", "conv_general_dilated", "ragged_dot_general", "dot", "convolution")


def of_jaxpr(jaxpr: Any) -> Iterator[Any]:
    """Equations of all products, those of functions that are called included."""
    for equation in jaxpr.eqns:
        if equation.primitive.name in _PRODUCTS:
            yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from of_jaxpr(inner)


def inexact(jaxpr: Any) -> list[str]:
    """Products of float32 that leave their precision to the platform."""
    return [
        f"{e.primitive.name} of {[v.aval.str_short() for v in e.invars[:2]]}: "
        f"precision {e.params['precision']}"
        for e in of_jaxpr(jaxpr)
        if any(v.aval.dtype == "float32" for v in e.invars[:2]) and e.params["precision"] != HIGHEST
    ]


def operations(lowered: jax.stages.Lowered) -> list[Any]:
    """All operations of a lowered plan, in MLIR."""
    found: list[Any] = []

    def note(operation: Any) -> Any:
        found.append(operation)
        return ir.WalkResult.ADVANCE

    module: Any = lowered.compiler_ir("stablehlo")
    module.operation.walk(note)
    return found


def in_stablehlo(lowered: jax.stages.Lowered) -> list[tuple[str, str, str]]:
    """Each product: its name, the element type of its first factor, its precision."""
    found: list[tuple[str, str, str]] = []
    for operation in operations(lowered):
        if operation.name.removeprefix("stablehlo.") in _PRODUCTS:
            kind = str(operation.operands[0].type.element_type)
            named = operation.attributes
            said = str(named["precision_config"]) if "precision_config" in named else ""
            found.append((operation.name, kind, said))
    return found


def custom_calls(lowered: jax.stages.Lowered) -> set[str]:
    """Names of what a plan calls that is not an operation of StableHLO."""
    return {
        str(operation.attributes["call_target_name"]).strip('"')
        for operation in operations(lowered)
        if operation.name == "stablehlo.custom_call"
    }
