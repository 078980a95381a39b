"""Arguments whose gradient torch refuses to compute."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["NO_DERIVATIVE"]

_BY_ARGUMENTS: tuple[tuple[tuple[int, ...], str], ...] = (
    ((0, 1), "floor_divide.default floor_divide.Scalar heaviside.default"),
    ((0,), "igamma.default igammac.default special_gammainc.default special_gammaincc.default"),
    ((0,), "special_zeta.default special_zeta.other_scalar"),
    ((1,), "remainder.Scalar_Tensor soft_margin_loss.default"),
    ((0, 3), "scatter.reduce scatter.value_reduce"),
    ((2,), "cross_entropy_loss.default nll_loss.default nll_loss_nd.default nll_loss2d.default"),
    ((2,), "nll_loss_forward.default nll_loss2d_forward.default binary_cross_entropy.default"),
    ((2, 3), "binary_cross_entropy_with_logits.default"),
)

NO_DERIVATIVE: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {f"aten.{name}": places for places, names in _BY_ARGUMENTS for name in names.split()}
)
"""Positions of such arguments, by op: torch raises in the backward pass, or in the forward pass of
a tensor that requires a gradient. ``tests/sweeps/test_edges.py`` finds them."""
