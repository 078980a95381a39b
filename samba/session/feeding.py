"""Inputs of ``session.run``: from what a script passes to arrays for input regions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from emulator.counters import DeviceCounters
from emulator.errors import RegionMismatch
from emulator.memory.aligned import LEAST_ALIGNED, copy_aligned
from pef_schema.errors import quoted
from pef_schema.program import Graph, Program
from samba.errors import ArgumentError, NoHostData, literal
from samba.sambatensor import SambaTensor
from samba.session.given_values import cast_input, dtype_name
from samba.session.index_checks import FedIndices
from samba.support.deviations import Deviations
from samba.support.nesting import Constant, leaves
from samba.tensor.views import copy_as_numpy, host_of, readable, view_host
from samba.tracer.inputs import NamedInput
from samba.tracer.traced import FROM_DTYPE

Feed = Sequence[tuple[int, np.ndarray]]
"""Input regions with the arrays to put there."""


class UnknownInput(ArgumentError):
    """``run`` was given a tensor that is not an input of the program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSlot:
    """An input of the program.

    Args:
        name: Name of its tensor.
        region: Where it goes.
        shape, dtype: Of the tensors it takes.
        checks: Of its elements that are used as indices.
    """

    name: str
    region: int
    shape: torch.Size
    dtype: torch.dtype
    checks: tuple[FedIndices, ...] = ()


class Feeder:
    """Matches tensors to the inputs of a program, by name, then by position.

    Args:
        program: The loaded program.
        slots: The inputs that it takes: of one of its graphs, or of all that run one after the
            other.
        given: The inputs that the model was traced with: keys of a dict may be their
            argument names, and None may keep the place of another.
        constants: Arguments by name that are constants of the graph.

    Attributes:
        counters: Where the bytes of inputs are counted.
        named: What the model was traced with, each with its slot.
    """

    def __init__(
        self,
        program: Program,
        slots: Sequence[InputSlot],
        given: Sequence[NamedInput] = (),
        *,
        constants: Sequence[tuple[str, Constant]] = (),
    ) -> None:
        self.counters = DeviceCounters()
        self.slots = tuple(slots)
        self._nbytes = sum(program.regions[slot.region].nbytes for slot in self.slots)
        self._index_checks = tuple(
            (place, check) for place, slot in enumerate(self.slots) for check in slot.checks
        )
        copies = (np.ndarray.copy, copy_aligned)
        large = [program.regions[s.region].nbytes >= LEAST_ALIGNED for s in self.slots]
        self._rows = [
            (s.name, s.shape, s.dtype, s.region, 0 not in s.shape, copies[is_large])
            for s, is_large in zip(self.slots, large, strict=True)
        ]
        self._deviations = Deviations()
        self._constants = dict(constants)
        self._by_name = {slot.name: slot for slot in self.slots}
        self.named = list(zip(given, self.slots, strict=False))
        self._by_key = {n.argument: slot for n, slot in self.named} | self._by_name
        self._by_place = {n.place: slot for n, slot in self.named}
        self._of_one_name: dict[str, list[InputSlot]] = {}
        for n, slot in self.named:
            self._of_one_name.setdefault(n.given_name, []).append(slot)
        for slot in self.slots:
            self._by_name.setdefault(program.regions[slot.region].name, slot)

    def arrays(self, inputs: Any) -> Feed:
        """Copies of inputs with the regions they go to; the caller may reuse its memory.

        Args:
            inputs: A tensor, a tuple or list of tensors and None, or a dict of them by name.

        Returns:
            One pair for each tensor given.

        Raises:
            UnknownInput: If a tensor belongs to no input.
            ArgumentError: If something is not a tensor, or an input is given twice.
            RegionMismatch: If a shape is not the compiled one, or a dtype of another kind.
            UnreadableTensor: If a tensor has no plain values in host memory.
            IndexOutOfRange: If an input is used as indices and one of them is out of range.
        """
        with torch._C.DisableTorchFunctionSubclass():
            if isinstance(inputs, (tuple, list)) and len(inputs) == len(self.slots):
                feed = []
                try:
                    for tensor, row in zip(inputs, self._rows, strict=True):
                        name, shape, dtype, region, some, copy = row
                        if getattr(tensor, "_sn_name", "") != name or not tensor._has_data:
                            break
                        host = tensor.__dict__.get("_underlying", tensor)  # host_of, not called
                        if host.shape != shape or host.dtype is not dtype:
                            break
                        if some and not host.data_ptr():  # its memory was freed
                            break
                        feed.append((region, copy(view_host(host))))
                    else:
                        for place, check in self._index_checks:
                            check.check(feed[place][1])
                        self.counters.to_device += self._nbytes
                        return feed
                except (RuntimeError, NotImplementedError, TypeError):
                    pass  # no plain values in host memory: told with its name below
            pairs = [
                (slot.region, self._checked(tensor, slot)) for slot, tensor in self._matched(inputs)
            ]
            self.counters.to_device += sum(array.nbytes for _, array in pairs)
            return pairs

    def shapes(self, inputs: Any) -> dict[str, torch.Size]:
        """Shapes of inputs by the names of their slots, whether they fit or not.

        Args:
            inputs: As for :meth:`arrays`.

        Raises:
            ArgumentError: If something is not a tensor or belongs to no input.
        """
        with torch._C.DisableTorchFunctionSubclass():
            matched = self._matched(inputs)
            return {slot.name: _readable(tensor, slot).shape for slot, tensor in matched}

    def left_out(self, inputs: Any) -> frozenset[int]:
        """Regions of the inputs that are given as None.

        Args:
            inputs: As in :meth:`arrays`.
        """
        pairs = enumerate(() if inputs is None else _pairs(inputs))
        slots = [
            self._by_key.get(key) if key else self._by_place.get(place)
            for place, (key, item) in pairs
            if item is None
        ]
        return frozenset(slot.region for slot in slots if slot is not None)

    def _checked(self, tensor: torch.Tensor, slot: InputSlot) -> np.ndarray:
        tensor = _readable(host_of(tensor), slot)
        if tensor.shape != slot.shape:
            raise RegionMismatch(
                name=slot.name,
                found=f"shape {list(tensor.shape)} {dtype_name(tensor.dtype)}",
                wanted=f"shape {list(slot.shape)} {dtype_name(slot.dtype)}",
            )
        if not getattr(tensor, "_has_data", True):
            if not (isinstance(tensor, SambaTensor) and tensor.materializer_provided):
                raise NoHostData(
                    operation="session.run(input_tensors=...)",
                    name=slot.name,
                    shape=tuple(tensor.shape),
                )
            tensor = tensor.torch_tensor()
        if tensor.dtype is not slot.dtype:
            tensor = cast_input(tensor, slot.dtype, name=slot.name, deviations=self._deviations)
        array = copy_as_numpy(tensor)
        for check in slot.checks:
            check.check(array)
        return array

    def _matched(self, inputs: Any) -> list[tuple[InputSlot, torch.Tensor]]:
        pairs = [(key, item) for key, item in _pairs(inputs) if not self._is_constant(key, item)]
        tensors = [(i, key, tensor) for i, (key, tensor) in enumerate(pairs) if tensor is not None]
        places = self._by_place
        if len(tensors) in (len(pairs), len(self.slots)):
            # No input is left out, or only the last ones: the others follow in order.
            places = {i: slot for (i, _, _), slot in zip(tensors, self.slots, strict=False)}
        times = Counter([id(tensor) for _, _, tensor in tensors])
        matched: dict[str, tuple[InputSlot, torch.Tensor]] = {}
        for place, key, tensor in tensors:
            where = f"session.run(input_tensors[{literal(key)}])" if key else _where(place)
            candidate = self._by_key.get(key) if key else places.get(place)
            if times[id(tensor)] > 1 and candidate is not None and self._may_be_named(tensor):
                slot = candidate  # one tensor for several inputs: its name can be that of one only
            else:
                slot = self._slot(key, tensor, places.get(place), where)
            if slot.name in matched:
                free = [s for s in self._of_one_name.get(slot.name, ()) if s.name not in matched]
                slot = free[0] if free else slot
            if slot.name in matched:
                raise ArgumentError(
                    where=where,
                    found=f"a second tensor for input {slot.name}",
                    wanted="one tensor for each input",
                    hint="Give every tensor the name of its own input.",
                )
            matched[slot.name] = (slot, tensor)
        return list(matched.values())

    def _may_be_named(self, tensor: torch.Tensor) -> bool:
        name = getattr(tensor, "sn_name", "")
        return not name or name in self._by_name or name in self._of_one_name

    def _is_constant(self, key: str, item: Any) -> bool:
        """Whether an argument by name is a constant of the graph, and the same as compiled."""
        if not key or not isinstance(item, Constant) or key not in self._constants:
            return False
        compiled = self._constants[key]
        if type(item) is not type(compiled) or item != compiled:
            raise ArgumentError(
                where=f"session.run(input_tensors[{literal(key)}])",
                found=repr(item),
                wanted=f"{compiled!r}, which the graph was traced with",
                hint="An argument that is not a tensor is a constant of the graph: compile again "
                "to change it.",
                deviation="changed-argument",
            )
        return True

    def _slot(self, key: str, tensor: Any, at: InputSlot | None, where: str) -> InputSlot:
        if not isinstance(tensor, torch.Tensor):
            raise ArgumentError(
                where=where,
                found=type(tensor).__name__,
                wanted="a SambaTensor, a torch.Tensor or None",
            )
        name = getattr(tensor, "sn_name", "")
        named = self._by_name.get(name) or self._by_name.get(getattr(tensor, "sn_region_name", ""))
        keyed = self._by_key.get(key) if key else None
        if named is not None and keyed is not None and named is not keyed:
            raise ArgumentError(
                where=where,
                found=f"a tensor named {quoted(name)}",
                wanted=f"a tensor for input {keyed.name}",
                hint="Its name belongs to one input and its key to another; rename one of them.",
            )
        match = named or keyed
        if match is not None:
            return match
        if at is not None and not name and not key:
            return at
        names = ", ".join(slot.name for slot in self.slots)
        raise UnknownInput(
            where=where,
            found=f"a tensor named {literal(name or key)}"
            if name or key
            else "one tensor too many",
            wanted=f"inputs named {names}" if names else "no inputs",
            hint="Inputs are matched by name: use samba.from_torch_tensor(tensor, name=...) "
            "with the names used when the model was compiled.",
        )


def slots_of(graph: Graph, checks: Mapping[int, tuple[FedIndices, ...]]) -> tuple[InputSlot, ...]:
    """The inputs of a graph.

    Args:
        graph: The graph.
        checks: Checks of inputs that are used as indices, by value.
    """
    return tuple(
        InputSlot(
            name=graph.values[v].name,
            region=graph.values[v].region,
            shape=torch.Size(graph.values[v].shape),
            dtype=FROM_DTYPE[graph.values[v].dtype],
            checks=checks.get(v, ()),
        )
        for v in graph.inputs
    )


def slots_of_all(
    program: Program, checks: Sequence[Mapping[int, tuple[FedIndices, ...]]]
) -> tuple[InputSlot, ...]:
    """The inputs of all graphs, except those that an earlier graph computes.

    Args:
        program: The program.
        checks: The checks of each graph, as :func:`slots_of` takes them.
    """
    slots: dict[int, InputSlot] = {}
    written: set[int] = set()
    for graph, of_graph in zip(program.graphs, checks, strict=True):
        for slot in slots_of(graph, of_graph):
            there = slots.get(slot.region)
            if there is not None:
                slots[slot.region] = replace(there, checks=(*there.checks, *slot.checks))
            elif slot.region not in written:
                slots[slot.region] = slot
        written.update(output.region for output in graph.outputs)
    return tuple(slots.values())


def _readable(tensor: torch.Tensor, slot: InputSlot) -> torch.Tensor:
    """The tensor, unless it has values that cannot be read."""
    return readable(tensor, slot.name) if getattr(tensor, "_has_data", True) else tensor


def _where(place: int) -> str:
    return f"session.run(input_tensors[{place}])"


def _pairs(inputs: Any) -> Iterator[tuple[str, Any]]:
    """Keys and tensors; the key is empty where there is none."""
    if isinstance(inputs, torch.Tensor):
        yield "", inputs
    elif isinstance(inputs, Mapping):
        for key, item in inputs.items():
            yield from leaves(key, item)
    elif isinstance(inputs, (tuple, list)):
        yield from leaves("", inputs)
    elif isinstance(inputs, torch.nn.Module):
        raise ArgumentError(
            where="session.run(input_tensors=...)",
            found=type(inputs).__name__,
            wanted="a tensor, a tuple, a list, a dict or None",
            hint="Leave the model out, as trace_graph knows it: run(inputs, model.output_tensors).",
            deviation="run-without-model",
        )
    else:
        raise ArgumentError(
            where="session.run(input_tensors=...)",
            found=type(inputs).__name__,
            wanted="a tensor, a tuple, a list, a dict or None",
        )
