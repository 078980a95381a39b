"""Describe torch and samba optimizers as data the device can execute.

To add an optimizer: an ``OptimizerKind``, a row in ``_KINDS`` here, its update rule in
``emulator/lowering/update_rules.py``, and ``TORCH_STATES`` in ``samba.session.host_tensors`` where
torch names a state otherwise.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pef_schema.errors import SambaError
from pef_schema.program import ArginKind, OptimizerKind
from samba.optim.qadam import QAdamOptimizer


class UnsupportedOptimizer(SambaError):
    """The optimizer's update rule is not known to the device."""

    deviation = "unsupported-optimizer"

    def __init__(self, *, found: str, reason: str = "") -> None:
        self.found = found
        known = ", ".join(cls.__name__ for cls, _ in _KINDS)
        super().__init__(
            f"optimizer {found}: {reason or 'no update rule for it on the device'}; "
            f"wanted one of {known} (from samba.optim, torch.optim or samba.distributed.bagua). "
            "Use one of these, or compile without an optimizer and step on the host."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """One parameter group of an optimizer, before regions are assigned.

    Args:
        name: Unique name such as ``adamw0`` or ``adamw0_group1``.
        owner: Index of the optimizer it belongs to.
        kind: Update rule.
        parameters: The host parameters.
        argins: ``(kind, argin name, default)`` rows.
        options: Fixed settings, sorted by name.
        states: State names in the order the rule takes them.
        has_step: Whether the rule counts steps: for bias correction, or to know the first one.
        max_grad_norm: Norm to clip the whole optimizer's gradients to, None for no clipping.
    """

    name: str
    owner: int
    kind: OptimizerKind
    parameters: tuple[torch.Tensor, ...]
    argins: tuple[tuple[ArginKind, str, float], ...]
    options: tuple[tuple[str, float], ...]
    states: tuple[str, ...]
    has_step: bool
    max_grad_norm: float | None


def _sgd(group: dict[str, Any]) -> tuple[dict[ArginKind, float], dict[str, float], tuple[str, ...]]:
    argins = {
        ArginKind.LR: group["lr"],
        ArginKind.MOMENTUM: group["momentum"],
        ArginKind.WEIGHT_DECAY: group["weight_decay"],
    }
    options = {k: float(group[k]) for k in ("dampening", "maximize", "nesterov")}
    return argins, options, ("momentum",)


def _adam(
    group: dict[str, Any],
) -> tuple[dict[ArginKind, float], dict[str, float], tuple[str, ...]]:
    argins = {ArginKind.LR: group["lr"], ArginKind.WEIGHT_DECAY: group["weight_decay"]}
    beta1, beta2 = group["betas"]
    options = {
        "amsgrad": float(group["amsgrad"]),
        "beta1": float(beta1),
        "beta2": float(beta2),
        "eps": float(group["eps"]),
        "maximize": float(group["maximize"]),
    }
    states = ("exp_avg", "exp_avg_sq") + (("max_exp_avg_sq",) if group["amsgrad"] else ())
    return argins, options, states


def _qadam(
    group: dict[str, Any],
) -> tuple[dict[ArginKind, float], dict[str, float], tuple[str, ...]]:
    argins = {ArginKind.LR: group["lr"], ArginKind.WEIGHT_DECAY: group["weight_decay"]}
    beta1, beta2 = group["betas"]
    options = {
        "beta1": float(beta1),
        "beta2": float(beta2),
        "eps": float(group["eps"]),
        "warmup_steps": float(group["warmup_steps"]),
    }
    return argins, options, ("exp_avg", "exp_avg_sq")


_Describe = Callable[
    [dict[str, Any]], tuple[dict[ArginKind, float], dict[str, float], tuple[str, ...]]
]
# AdamW first: it is a subclass of Adam.
_KINDS: tuple[tuple[type[torch.optim.Optimizer], tuple[OptimizerKind, _Describe]], ...] = (
    (torch.optim.AdamW, (OptimizerKind.ADAMW, _adam)),
    (torch.optim.Adam, (OptimizerKind.ADAM, _adam)),
    (torch.optim.SGD, (OptimizerKind.SGD, _sgd)),
    (QAdamOptimizer, (OptimizerKind.QADAM, _qadam)),
)

ARGIN_KEYS = {
    ArginKind.LR: "lr",
    ArginKind.MOMENTUM: "momentum",
    ArginKind.WEIGHT_DECAY: "weight_decay",
}
"""Hyperparameter names as users write them in ``hyperparam_dict``."""


def as_optimizers(optimizers: Any) -> tuple[torch.optim.Optimizer, ...]:
    """None, one optimizer or a sequence of them, as a tuple.

    Raises:
        UnsupportedOptimizer: If something else is found.
    """
    if optimizers is None:
        return ()
    found = optimizers if isinstance(optimizers, (list, tuple)) else [optimizers]
    for optimizer in found:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise UnsupportedOptimizer(found=type(optimizer).__name__, reason="not an optimizer")
    return tuple(found)


def describe_optimizers(optimizers: Sequence[torch.optim.Optimizer]) -> list[GroupSpec]:
    """Describe every parameter group of every optimizer.

    Args:
        optimizers: Torch or samba optimizers, in the order users pass them.

    Returns:
        One :class:`GroupSpec` per parameter group.

    Raises:
        UnsupportedOptimizer: If one has no update rule on the device.
    """
    specs: list[GroupSpec] = []
    several = sum(len(o.param_groups) for o in optimizers) > 1
    for owner, optimizer in enumerate(optimizers):
        kind, describe = _kind(optimizer)
        prefix = getattr(optimizer, "argin_region_name", "") or ""
        shared: dict[str, Any] = {}
        if isinstance(optimizer, QAdamOptimizer):
            shared["warmup_steps"] = optimizer.warmup_steps
        for index, group in enumerate(optimizer.param_groups):
            name = f"{kind.name.lower()}{owner}" + (f"_group{index}" if index else "")
            argins, options, states = describe({**shared, **group})
            suffix = f"_group{index}" if index else ""
            label = f"{prefix}{suffix}" if prefix else (name if several else "")
            specs.append(
                GroupSpec(
                    name=name,
                    owner=owner,
                    kind=kind,
                    parameters=tuple(group["params"]),
                    argins=tuple(
                        (k, f"{label}__{ARGIN_KEYS[k]}" if label else ARGIN_KEYS[k], float(v))
                        for k, v in argins.items()
                    ),
                    options=tuple(sorted(options.items())),
                    states=states,
                    has_step=kind is not OptimizerKind.SGD or options["dampening"] != 0.0,
                    max_grad_norm=getattr(optimizer, "max_grad_norm", None),
                )
            )
    return specs


def _kind(optimizer: torch.optim.Optimizer) -> tuple[OptimizerKind, _Describe]:
    for cls, entry in _KINDS:
        if isinstance(optimizer, cls):
            _refuse_own_step(optimizer, cls)
            return entry if entry[0] is not OptimizerKind.ADAM else (_adam_kind(optimizer), _adam)
    raise UnsupportedOptimizer(found=type(optimizer).__name__)


def _refuse_own_step(optimizer: torch.optim.Optimizer, cls: type[torch.optim.Optimizer]) -> None:
    """Refuse a subclass that steps otherwise: the device would step as its base does."""
    step = inspect.unwrap(type(optimizer).step)
    if not step.__module__.startswith(("torch.optim.", "samba.")):
        raise UnsupportedOptimizer(
            found=type(optimizer).__name__,
            reason=f"it is a {cls.__name__} with a step() of its own "
            f"({step.__code__.co_filename}:{step.__code__.co_firstlineno})",
        )


def _adam_kind(optimizer: torch.optim.Optimizer) -> OptimizerKind:
    """``Adam(decoupled_weight_decay=True)`` is AdamW."""
    groups = optimizer.param_groups
    decoupled = {bool(group.get("decoupled_weight_decay", False)) for group in groups}
    if len(decoupled) > 1:
        raise UnsupportedOptimizer(
            found=type(optimizer).__name__,
            reason="decoupled_weight_decay in some of its parameter groups alone",
        )
    return OptimizerKind.ADAMW if decoupled == {True} else OptimizerKind.ADAM
