"""Which of an entry's sample inputs are tried: few, seeded, and as different as possible."""

from __future__ import annotations

import itertools
import warnings
import zlib
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tests.opinfo.catalog import DTYPES, Entry

SAMPLE_CAP = {"float32": 4}
"""Argument structures tried for an entry and dtype (see ``cap``)."""
OTHER_CAP = 2
REPEATS = 2
"""Samples of one structure that are run: they share a trace and an executable."""
MAX_LISTED = 1500
"""Samples looked at; the database makes at most that many for one entry and dtype."""
MAX_ELEMENTS = 200_000
"""Samples with a larger tensor are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One call of an operator, taken apart.

    Args:
        tensors: Distinct tensors among the arguments, in order.
        leaves: All leaves of ``(args, kwargs)``; a ``Slot`` where a tensor stood.
        spec: How to put the leaves together again.
        process: The sample's own ``output_process_fn_grad``.
    """

    tensors: tuple[torch.Tensor, ...]
    leaves: tuple[Any, ...]
    spec: pytree.TreeSpec
    process: Any

    def arguments(
        self, tensors: tuple[torch.Tensor, ...]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call's arguments with other tensors in their places."""
        leaves = [tensors[x.index] if isinstance(x, Slot) else x for x in self.leaves]
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return tuple(args), kwargs

    def key(self) -> Hashable:
        """Equal for samples that trace to the same program."""
        tensors = tuple((tuple(t.shape), t.dtype, t.requires_grad, t.layout) for t in self.tensors)
        process = getattr(self.process, "__qualname__", "")
        return tensors, self._settings(), str(self.spec), process

    def _settings(self) -> Hashable:
        return tuple(x.index if isinstance(x, Slot) else repr(x) for x in self.leaves)

    def coarse_keys(self) -> tuple[Hashable, ...]:
        """Keys from coarse to fine: samples that differ in an early one differ most."""
        kinds = tuple("tensor" if isinstance(x, Slot) else type(x).__name__ for x in self.leaves)
        dims = tuple((t.dim(), t.numel() == 0, t.dtype) for t in self.tensors)
        return (
            (kinds, str(self.spec)),
            (str(self.spec), self._settings()),
            (str(self.spec), dims),
            self.key(),
        )


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a tensor stood among the leaves."""

    index: int


def take_apart(info_sample: Any) -> Sample:
    """Separate a ``SampleInput`` into its tensors and the rest."""
    args = (info_sample.input, *info_sample.args)
    leaves, spec = pytree.tree_flatten((args, dict(info_sample.kwargs)))
    tensors: list[torch.Tensor] = []
    places: dict[int, int] = {}
    slotted: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            if id(leaf) not in places:
                places[id(leaf)] = len(tensors)
                tensors.append(leaf)
            slotted.append(Slot(places[id(leaf)]))
        else:
            slotted.append(leaf)
    return Sample(
        tensors=tuple(tensors),
        leaves=tuple(slotted),
        spec=spec,
        process=info_sample.output_process_fn_grad,
    )


def seed_for(*parts: object) -> int:
    """A seed that depends on the parts only, not on the process."""
    return zlib.crc32("/".join(map(str, parts)).encode())


def list_samples(entry: Entry, dtype: str, *, gradients: bool) -> Iterator[Sample]:
    """The database's samples in its order, seeded; those that are too large are left out."""
    torch.manual_seed(seed_for(entry.name, dtype))
    import random

    import numpy as np

    random.seed(0)
    np.random.seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        listed = list(
            itertools.islice(
                entry.info.sample_inputs("cpu", DTYPES[dtype], requires_grad=gradients), MAX_LISTED
            )
        )
    for item in listed:
        sample = take_apart(item)
        if all(t.layout is not torch.strided or t.numel() <= MAX_ELEMENTS for t in sample.tensors):
            yield sample


def cap(dtype: str) -> int:
    """How many argument structures are tried for a dtype."""
    return SAMPLE_CAP.get(dtype, OTHER_CAP)


def choose(samples: list[Sample], count: int) -> list[list[Sample]]:
    """Up to ``count`` groups of samples of one structure each; the most different come first.

    Among equally different ones those without an empty tensor come first.

    Args:
        samples: Samples in the order of the database.
        count: Largest number of groups.

    Returns:
        Groups of up to ``REPEATS`` samples; those of a group have equal keys.
    """
    groups: dict[Hashable, list[Sample]] = {}
    full = [s for s in samples if all(t.numel() for t in s.tensors)]
    known = set(map(id, full))
    for sample in [*full, *(s for s in samples if id(s) not in known)]:
        group = groups.setdefault(sample.key(), [])
        if len(group) < REPEATS:
            group.append(sample)
    chosen: dict[Hashable, list[Sample]] = {}
    levels = len(samples[0].coarse_keys()) if samples else 0
    for level in range(levels):
        seen = {group[0].coarse_keys()[level] for group in chosen.values()}
        for key, group in groups.items():
            if len(chosen) >= count:
                return list(chosen.values())
            coarse = group[0].coarse_keys()[level]
            if key not in chosen and coarse not in seen:
                chosen[key] = group
                seen.add(coarse)
    return list(chosen.values())
