"""A sample as a torch module, and what eager torch makes of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from tests.opinfo.samples import Sample


class Call(torch.nn.Module):
    """One call of an operator on the tensors of a sample; everything else is closed over.

    An operator that changes its arguments gets copies of them, which are results as well.

    Args:
        function: The operator.
        sample: Where the tensors go.
    """

    def __init__(self, function: Callable[..., Any], sample: Sample) -> None:
        super().__init__()
        self.function = function
        self.sample = sample
        self.changed = self._find_changed()

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """All tensors among the results."""
        tensors = tuple(t.clone() if i in self.changed else t for i, t in enumerate(tensors))
        args, kwargs = self.sample.arguments(tensors)
        leaves = pytree.tree_leaves(self.function(*args, **kwargs))
        results = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        known = {id(result) for result in results}
        results += [tensors[i] for i in self.changed if id(tensors[i]) not in known]
        return tuple(results)

    def _find_changed(self) -> tuple[int, ...]:
        """Positions of the arguments that the operator writes to."""
        copies = tuple(t.detach().clone() for t in self.sample.tensors)
        args, kwargs = self.sample.arguments(copies)
        writes = _Writes()
        with warnings.catch_warnings(), torch.no_grad(), writes:
            warnings.simplefilter("ignore")
            self.function(*args, **kwargs)
        pairs = enumerate(zip(copies, self.sample.tensors, strict=True))
        return tuple(
            i
            for i, (copy, original) in pairs
            if copy._version or id(copy) in writes.written or _differ(copy, original)
        )


_UNDECLARED = {torch.ops.aten.native_batch_norm.default: (3, 4)}
"""Arguments that an operator writes to without saying so in its schema."""


class _Writes(TorchDispatchMode):
    """Notes tensors that are written to, also where the contents stay the same."""

    def __init__(self) -> None:
        super().__init__()
        self.written: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        declared = [
            i
            for i, a in enumerate(func._schema.arguments[: len(args)])
            if a.alias_info is not None and a.alias_info.is_write
        ]
        self.written |= {id(args[i]) for i in (*declared, *_UNDECLARED.get(func, ()))}
        return func(*args, **(kwargs or {}))


def _differ(copy: torch.Tensor, original: torch.Tensor) -> bool:
    """Whether contents differ: some native kernels write without counting a new version."""
    if copy.layout is not torch.strided or copy.shape != original.shape:
        return copy.layout is torch.strided
    return bool(((copy != original) & ~(copy.isnan() & original.isnan())).any())


@dataclass(frozen=True, slots=True, kw_only=True)
class Eager:
    """What torch gives for a call.

    Args:
        outputs: Results, detached.
        wanted: Which of them require a gradient.
        cotangents: Random ones for the results that do, None for the others.
        gradients: One per argument that requires a gradient (zeros where torch has none), None
            for the others.
    """

    outputs: tuple[torch.Tensor, ...]
    wanted: tuple[bool, ...]
    cotangents: tuple[torch.Tensor | None, ...]
    gradients: tuple[torch.Tensor | None, ...]


def leaves_like(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Copies that no other tensor shares memory with, requiring gradients as the originals do."""
    return tuple(t.detach().clone().requires_grad_(t.requires_grad) for t in tensors)


def run_eager(
    module: Call,
    tensors: Sequence[torch.Tensor],
    *,
    seed: int,
    cotangents: Sequence[torch.Tensor | None] | None = None,
    leaves: Callable[[Sequence[torch.Tensor]], tuple[torch.Tensor, ...]] = leaves_like,
) -> Eager:
    """Run a call in plain torch, forward and backward.

    Args:
        module: The call.
        tensors: Its arguments.
        seed: Of the cotangents; the operator itself runs with torch's seed as it is.
        cotangents: Cotangents to use instead of random ones.
        leaves: Makes the tensors that the call takes, each of which may be changed.

    Returns:
        Results and gradients.
    """
    inputs = leaves(tensors)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outputs = module(*inputs)
    generator = torch.Generator().manual_seed(seed)
    wanted = tuple(o.requires_grad for o in outputs)
    seeds = tuple(
        _cotangent(o, generator, None if cotangents is None else cotangents[i]) if w else None
        for i, (o, w) in enumerate(zip(outputs, wanted, strict=True))
    )
    gradients: tuple[torch.Tensor | None, ...] = (None,) * len(inputs)
    if any(wanted):
        gradients = _gradients(inputs, outputs, seeds)
    return Eager(
        outputs=tuple(o.detach() for o in outputs),
        wanted=wanted,
        cotangents=seeds,
        gradients=gradients,
    )


def _cotangent(
    output: torch.Tensor, generator: torch.Generator, given: torch.Tensor | None
) -> torch.Tensor:
    if given is not None:
        return given.to(output.dtype)
    wide = torch.complex128 if output.is_complex() else torch.float64
    return torch.randn(output.shape, generator=generator, dtype=wide).to(output.dtype)


def _gradients(
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    cotangents: Sequence[torch.Tensor | None],
) -> tuple[torch.Tensor | None, ...]:
    ends = [o for o, c in zip(outputs, cotangents, strict=True) if c is not None]
    seeds = [c for c in cotangents if c is not None]
    starts = [t for t in inputs if t.requires_grad]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = iter(torch.autograd.grad(ends, starts, seeds, allow_unused=True))
    result: list[torch.Tensor | None] = []
    for tensor in inputs:
        if not tensor.requires_grad:
            result.append(None)
            continue
        gradient = next(found)
        result.append(torch.zeros_like(tensor) if gradient is None else gradient.detach())
    return tuple(result)
