"""What a comparison starts from, an operation on both sides, and how far the sides are apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch

from emulator.lowering.section import gradient_targets
from emulator.lowering.single_nodes import SingleNodes
from pef_schema.program import DType, Graph, Node, Role
from samba.comparison.report import Gap, Statistics, Status
from samba.tensor.views import view_as_numpy, view_as_torch
from samba.tracer import reference
from samba.tracer.traced import TO_DTYPE, Source, Traced, carries_gradient


@dataclass(frozen=True, slots=True, kw_only=True)
class Tol:
    """How closely a result must match torch: ``|a - b| <= atol + rtol * |b|``."""

    rtol: float
    atol: float


DEFAULT_TOL: Mapping[DType, Tol] = MappingProxyType(
    {
        # torch.testing.assert_close's own defaults for each dtype.
        DType.FLOAT64: Tol(rtol=1e-7, atol=1e-7),
        DType.FLOAT32: Tol(rtol=1.3e-6, atol=1e-5),
        DType.BFLOAT16: Tol(rtol=1.6e-2, atol=1e-5),
        DType.FLOAT16: Tol(rtol=1e-3, atol=1e-5),
        DType.COMPLEX64: Tol(rtol=1.3e-6, atol=1e-5),
        DType.COMPLEX128: Tol(rtol=1e-7, atol=1e-7),
    }
)

EXACT = Tol(rtol=0.0, atol=0.0)

OWN_ERRORS = 4.0
"""How many times as far from the float64 result the device may be as torch is anywhere in the
tensor. Both round in their own order; neither is exact."""

Exactly = Callable[[], torch.Tensor | None]
"""Gives the same tensor computed in float64, None where that cannot be."""


def widest(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor in float64, or in complex128 if it is complex, without its history."""
    wide = torch.complex128 if tensor.is_complex() else torch.float64
    return tensor.detach().to(wide)


def tolerance(dtype: torch.dtype) -> Tol:
    """The tolerance of an op's results of a dtype; 0 for integers and bool."""
    device_dtype = TO_DTYPE.get(dtype)
    return EXACT if device_dtype is None else DEFAULT_TOL.get(device_dtype, EXACT)


def gap(got: torch.Tensor, want: torch.Tensor, tol: Tol, more: float = 0.0) -> Gap:
    """The distance of two tensors of one shape.

    Args:
        got: The device's.
        want: Torch's.
        tol: What is allowed for an element.
        more: Allowed in addition, for every element.

    Returns:
        The distance; NaN is equal to NaN and an infinity to itself.
    """
    a, b = widest(got).reshape(-1), widest(want).reshape(-1)
    if b.numel() == 0:
        return Gap(
            largest=0.0,
            relative=0.0,
            index=(),
            device=0.0,
            torch=0.0,
            wrong=0,
            elements=0,
            allowed=0.0,
        )
    same = (a == b) | (a.isnan() & b.isnan())
    if not carries_gradient(want):
        same = got.reshape(-1) == want.reshape(-1)  # 64-bit integers do not fit float64
    distance = torch.where(same, 0.0, (a - b).abs())
    allowed = torch.where(b.isfinite(), tol.atol + tol.rtol * b.abs() + more, 0.0)
    wrong = ~same & ~(distance <= allowed)
    excess = torch.where(wrong, (distance - allowed).nan_to_num(nan=torch.inf), -1.0)
    worst = int(
        excess.argmax() if bool(wrong.any()) else distance.nan_to_num(nan=torch.inf).argmax()
    )
    norm = b[b.isfinite()].norm().item()
    off = distance.norm().item()
    position = torch.unravel_index(torch.tensor(worst), want.shape)
    return Gap(
        largest=distance.max().item(),
        relative=off / norm if norm else off,
        index=tuple(int(i) for i in position),
        device=a[worst].item(),
        torch=b[worst].item(),
        wrong=int(wrong.sum()),
        elements=b.numel(),
        allowed=allowed[worst].item(),
    )


def judge(
    got: torch.Tensor, want: torch.Tensor, tol: Tol, exactly: Exactly
) -> tuple[Status, Gap | None]:
    """Whether the device's tensor is right.

    Args:
        got: The device's.
        want: Torch's.
        tol: The op's tolerance.
        exactly: The same in float64; asked only if the tolerance alone does not do.

    Returns:
        The verdict and the distance, None for other shapes.
    """
    if got.shape != want.shape:
        return Status.SHAPE, None
    distance = gap(got, want, tol)
    if got.dtype != want.dtype:
        return Status.DTYPE, distance
    if not distance.wrong:
        return Status.OK, distance
    if bool((got.isfinite() != want.isfinite()).any()):
        return Status.NOT_FINITE, distance
    exact = exactly() if carries_gradient(want) else None
    if exact is not None and exact.shape == want.shape:
        own = gap(want, exact, EXACT).largest
        more = OWN_ERRORS * own if own < torch.inf else 0.0
        ours = gap(got, widest(exact), tol, more)
        if not ours.wrong:
            return Status.OK, replace(distance, wrong=0)
    return Status.BEYOND, distance


def dtype_name(tensor: torch.Tensor) -> str:
    """A tensor's dtype without torch's name before it."""
    return str(tensor.dtype).removeprefix("torch.")


def nonfinite(tensor: torch.Tensor) -> int:
    """How many elements are NaN or infinite."""
    return int((~tensor.isfinite()).sum()) if carries_gradient(tensor) else 0


def statistics(name: str, tensor: torch.Tensor) -> Statistics:
    """A tensor in numbers; NaN and infinities do not count for them.

    A complex tensor is described by its absolute values.
    """
    plain = widest(tensor)
    plain = plain.abs() if plain.is_complex() else plain
    finite = plain[plain.isfinite()]
    none = float("nan")
    return Statistics(
        name=name,
        shape=tuple(tensor.shape),
        dtype=dtype_name(tensor),
        minimum=finite.min().item() if finite.numel() else none,
        maximum=finite.max().item() if finite.numel() else none,
        mean=finite.mean().item() if finite.numel() else none,
        std=finite.std(correction=0).item() if finite.numel() else none,
        nans=int(plain.isnan().sum()),
        infs=int(plain.isinf().sum()),
    )


def source_values(traced: Traced) -> tuple[dict[int, torch.Tensor], list[str]]:
    """Plain copies of everything that a graph takes from outside.

    Args:
        traced: The traced model.

    Returns:
        Tensors by value index, with dropout rates of 0 and a seed of 0, and notes on that.
    """
    tensors: dict[int, torch.Tensor] = {}
    for source in traced.sources:
        if source.role is Role.SEED:
            tensors[source.value] = torch.zeros(2, dtype=torch.uint32)
        elif source.role is Role.ARGIN:
            tensors[source.value] = torch.zeros((), dtype=torch.float64)
        elif source.role is Role.METRIC:
            tensors[source.value] = torch.zeros((), dtype=torch.bool)
        else:
            tensors[source.value] = _plain(source)
    rates = any(s.role is Role.ARGIN and s.default != 0.0 for s in traced.sources)
    return tensors, ["dropout is off on both sides"] if rates else []


def _plain(source: Source) -> torch.Tensor:
    tensor = source.tensor
    if tensor is None:
        raise ValueError(f"source {source.name} of role {source.role.name} has no tensor")
    if not getattr(tensor, "has_data", True):
        tensor = tensor.torch_tensor()  # pyright: ignore[reportAttributeAccessIssue]  # a SambaTensor
    return tensor.detach().as_subclass(torch.Tensor).clone(memory_format=torch.contiguous_format)


Tensors = Mapping[int, torch.Tensor]
"""Tensors by value index."""


def host_forward(graph: Graph, node: Node, env: Tensors) -> dict[int, torch.Tensor]:
    """Execute a node with torch."""
    with torch.no_grad():
        results = reference.run_node(node, env, graph)
    return {v: r.detach() for v, r in zip(node.outputs, results, strict=False) if v >= 0}


def host_backward(
    graph: Graph, node: Node, env: Tensors, cotangents: Tensors
) -> dict[int, torch.Tensor]:
    """Differentiate a node with torch.

    Args:
        graph: Its graph.
        node: The node.
        env: Values that it takes.
        cotangents: Gradients of its results; missing ones are zeros.

    Returns:
        Gradients by the value they belong to; where torch returns None there is no entry.
    """
    targets = gradient_targets(graph, node)
    leaves = {v: env[v].detach().clone().requires_grad_() for v in targets}
    with torch.enable_grad():
        results = reference.run_node(node, {**env, **leaves}, graph)
    pairs = [
        (result, cotangents[v].to(result.dtype))
        for v, result in zip(node.outputs, results, strict=False)
        if v in cotangents and isinstance(result, torch.Tensor) and result.requires_grad
    ]
    if not pairs:
        return {}
    gradients = torch.autograd.grad(
        [result for result, _ in pairs],
        list(leaves.values()),
        [cotangent for _, cotangent in pairs],
        allow_unused=True,
    )
    return {
        v: g.resolve_conj().resolve_neg()
        for v, g in zip(targets, gradients, strict=True)
        if g is not None
    }


def exactly(compute: Callable[[dict[int, torch.Tensor]], Tensors], env: Tensors) -> Tensors:
    """Run one of the above on float64 copies of what it takes; empty if torch cannot."""
    wide = {v: widest(t) if carries_gradient(t) else t for v, t in env.items()}
    try:
        return compute(wide)
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return {}


class DeviceNodes:
    """Runs single nodes as the device does.

    Args:
        graph: Their graph.
    """

    def __init__(self, graph: Graph) -> None:
        self._nodes = SingleNodes(graph)

    def forward(self, node: Node, env: Tensors) -> dict[int, torch.Tensor]:
        """Execute a node on tensors by value; returns its results by value."""
        arrays = {v: view_as_numpy(env[v]) for v in node.refs()}
        return {v: view_as_torch(a) for v, a in self._nodes.forward(node, arrays).items()}

    def backward(self, node: Node, env: Tensors, cotangents: Tensors) -> dict[int, torch.Tensor]:
        """Differentiate a node; returns gradients by value that it takes."""
        arrays = {v: view_as_numpy(env[v]) for v in node.refs()}
        seeds = {v: view_as_numpy(t) for v, t in cotangents.items()}
        gradients = self._nodes.backward(node, arrays, seeds)
        return {v: view_as_torch(a) for v, a in gradients.items()}
