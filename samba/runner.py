"""The run loop: from what a script passes to ``session.run`` to a started plan and back.

A repeated call with the same sections and the same outputs walks tuples prepared
by the first one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from emulator.device import Device, StepKey
from emulator.errors import RegionMismatch, UnknownSection
from emulator.plan import Plan
from pef_schema.program import ArginKind, SectionKind
from samba.errors import ArgumentError, NoGradient, UnknownTensor
from samba.sambatensor import SambaTensor
from samba.tracer.traced import FROM_DTYPE
from samba.transfer import copy_as_numpy, fetch_as_torch, view_as_numpy

_log = logging.getLogger("samba")

_GROUP_KEYS = {
    "lr": ArginKind.LR,
    "momentum": ArginKind.MOMENTUM,
    "weight_decay": ArginKind.WEIGHT_DECAY,
    "p": ArginKind.DROPOUT_RATE,
}
"""Hyperparameter keys that mean every argin of a kind."""


class UnknownInput(ArgumentError):
    """``run`` was given a tensor that is no input of the program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSlot:
    """An input of the program, as the run loop needs it."""

    name: str
    region: int
    shape: torch.Size
    dtype: torch.dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which part of the schedule to run."""

    section_types: tuple[str, ...] = ()
    section_ids: tuple[int, ...] = ()
    from_call: int | None = None
    until_call: int | None = None


class Runner:
    """Runs a device for a session.

    Args:
        device: An open device with its program.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.program = device.program
        graph = self.program.graphs[0]
        self.slots = tuple(
            InputSlot(
                name=self._input_name(v),
                region=graph.values[v].region,
                shape=torch.Size(graph.values[v].shape),
                dtype=FROM_DTYPE[graph.values[v].dtype],
            )
            for v in graph.inputs
        )
        self._slot_by_name = {slot.name: slot for slot in self.slots}
        for slot in self.slots:
            self._slot_by_name.setdefault(self.program.regions[slot.region].name, slot)
        self._steps: dict[Selection, StepKey] = {}
        self._last_select: tuple[Any, ...] = ()
        self._last_steps: StepKey = ()
        self._last_plan: Plan | None = None
        self._last_variant: object = None
        self._last_hyper: dict[str, Any] = {}
        self._last_outputs: object = None
        self._output_regions: tuple[tuple[int, str], ...] = ()
        self._rates = {
            i: a.default
            for i, a in enumerate(self.program.argins)
            if a.kind is ArginKind.DROPOUT_RATE
        }
        self._training = True
        self._told: set[str] = set()

    def _input_name(self, value: int) -> str:
        graph = self.program.graphs[0]
        region = graph.values[value].region
        name = graph.values[value].name
        known = [s.name for s in self.program.symbols if s.region == region]
        return name if name in known or not known else known[0]

    # -- the loop -----------------------------------------------------------

    def run(
        self,
        inputs: Any,
        outputs: Any,
        hyper: Mapping[str, Any],
        select: tuple[Any, ...],
        grads: Any,
        train: bool,
    ) -> tuple[SambaTensor, ...]:
        """One call of ``session.run``; nothing on the device changes if it raises.

        Args:
            inputs: Tensors to transfer, in any of the accepted shapes; None for none.
            outputs: Tensors to fetch.
            hyper: Hyperparameters; they stay until changed.
            select: ``(section_types, section_ids, from_call, until_call)`` as passed.
            grads: Gradients of the outputs, None for none.
            train: Whether dropout rates are honoured.

        Returns:
            The fetched outputs.
        """
        device = self.device
        arrays = self._arrays(inputs) if inputs is not None else ()
        if outputs is not self._last_outputs:
            regions = self._resolve_outputs(outputs)
        else:
            regions = self._output_regions
        if select != self._last_select:
            steps = self._resolve_steps(select)
        else:
            steps = self._last_steps
        changes = () if hyper == self._last_hyper else self._resolve_hyper(hyper)
        if grads is not None:
            self._seed(grads)
        if changes or train is not self._training:
            self._apply(changes, train)
            self._last_hyper = dict(hyper)
        buffers = device.pool.buffers
        for region, array in arrays:
            buffers[region] = array
        if steps is not self._last_steps or device.variant is not self._last_variant:
            self._last_plan = device.plan(steps) if steps else None
            self._last_variant = device.variant
            self._last_steps = steps
            self._last_select = select
        if self._last_plan is not None:
            device.run(self._last_plan)
        if isinstance(outputs, tuple):
            self._last_outputs, self._output_regions = outputs, regions
        return tuple(self._fetch(region, name) for region, name in regions)

    def _arrays(self, inputs: Any) -> list[tuple[int, np.ndarray]]:
        """Checked host copies of the inputs, with the regions they go to."""
        found: list[tuple[int, np.ndarray]] = []
        slots = self.slots
        with torch._C.DisableTorchFunctionSubclass():
            for position, (key, tensor) in enumerate(_pairs(inputs)):
                if tensor is None:
                    continue
                name = getattr(tensor, "sn_name", "")
                if position < len(slots) and name == slots[position].name:
                    slot = slots[position]
                else:
                    slot = self._slot(key, name, position, tensor)
                if tensor.shape != slot.shape or tensor.dtype is not slot.dtype:
                    raise RegionMismatch(
                        name=slot.name,
                        found=f"shape {list(tensor.shape)} {_dtype(tensor)}",
                        wanted=f"shape {list(slot.shape)} {_name(slot.dtype)}",
                    )
                found.append((slot.region, copy_as_numpy(tensor)))
        return found

    def _slot(self, key: str, name: str, position: int, tensor: Any) -> InputSlot:
        wanted = ", ".join(slot.name for slot in self.slots)
        if not isinstance(tensor, torch.Tensor):
            raise ArgumentError(
                where=f"session.run(input_tensors[{key or position}])",
                found=type(tensor).__name__,
                wanted="a SambaTensor or None",
            )
        for candidate in (name, getattr(tensor, "sn_region_name", ""), key):
            if candidate and candidate in self._slot_by_name:
                return self._slot_by_name[candidate]
        if not name and not key and position < len(self.slots):
            return self.slots[position]
        raise UnknownInput(
            where=f"session.run(input_tensors[{key or position}])",
            found=f"a tensor named {name or key!r}" if name or key else "one tensor too many",
            wanted=f"inputs named {wanted}",
            hint="Inputs are matched by name: use samba.from_torch_tensor(tensor, name=...) "
            "with the names used when the model was compiled.",
        )

    def _fetch(self, region: int, name: str) -> SambaTensor:
        buffer = self.device.pool.buffers[region]
        if buffer is None:
            buffer = self.device.read(region)
        tensor = fetch_as_torch(buffer).as_subclass(SambaTensor)
        tensor._sn_name = name
        return tensor

    # -- what a first call prepares ------------------------------------------

    def _resolve_outputs(self, outputs: Any) -> tuple[tuple[int, str], ...]:
        if outputs is None:
            return ()
        if isinstance(outputs, torch.Tensor):
            outputs = (outputs,)
        regions = []
        for i, tensor in enumerate(outputs):
            name = getattr(tensor, "sn_name", "") if not isinstance(tensor, str) else tensor
            if not name or not self.device.knows(name):
                raise UnknownTensor(operation=f"session.run(output_tensors[{i}])", name=name)
            regions.append((self.device.region_of(name), name))
        return tuple(regions)

    def _resolve_steps(self, select: tuple[Any, ...]) -> StepKey:
        types, ids, from_call, until_call = select
        if types and ids:
            raise ArgumentError(
                where="session.run(section_ids=..., section_types=...)",
                found=f"section_ids={list(ids)} and section_types={list(types)}",
                wanted="one of the two",
            )
        selection = Selection(
            section_types=tuple(str(t).upper().lstrip("$") for t in _listed(types)),
            section_ids=tuple(_flat(ids)),
            from_call=from_call,
            until_call=until_call,
        )
        steps = self._steps.get(selection)
        if steps is None:
            steps = self._select(selection)
            self._steps[selection] = steps
        return steps

    def _select(self, selection: Selection) -> StepKey:
        sections = self.program.sections
        calls = self.program.schedules[0].calls
        known = [c.call_id for c in calls]
        for what, value in (
            ("run_from_call_id", selection.from_call),
            ("run_until_call_id", selection.until_call),
        ):
            if value is not None and value not in known:
                raise UnknownSection(found=[value], wanted=known, what=what)
        if selection.from_call is not None:
            calls = tuple(c for c in calls if c.call_id >= selection.from_call)
        if selection.until_call is not None:
            calls = tuple(c for c in calls if c.call_id <= selection.until_call)
        if selection.section_ids:
            unknown = [i for i in selection.section_ids if not 0 <= i < len(sections)]
            if unknown:
                raise UnknownSection(found=unknown, wanted=range(len(sections)), what="section_ids")
            return tuple(
                (i, k) for i in selection.section_ids for k in range(len(sections[i].steps))
            )
        if selection.section_types:
            kinds = [self._kind(t) for t in selection.section_types]
            present = {step.kind for section in sections for step in section.steps}
            for kind in kinds:
                if kind not in present:
                    self._tell(
                        f"this PEF has no {kind.name} section; there is nothing to run for it"
                    )
            return tuple(
                (c.section, k)
                for kind in kinds
                for c in calls
                for k, step in enumerate(sections[c.section].steps)
                if step.kind is kind
            )
        return tuple((c.section, k) for c in calls for k in range(len(sections[c.section].steps)))

    def _kind(self, name: str) -> SectionKind:
        try:
            return SectionKind[name]
        except KeyError:
            raise UnknownSection(
                found=[name], wanted=[k.name for k in SectionKind], what="section_types"
            ) from None

    def _resolve_hyper(self, hyper: Mapping[str, Any]) -> tuple[tuple[int, float], ...]:
        argins = self.program.argins
        exact = self.device.argin_index
        own = self._own_prefix()
        changes: dict[int, float] = {}
        for key, value in hyper.items():
            targets: Iterable[int] = ()
            if key in _GROUP_KEYS:
                kind = _GROUP_KEYS[key]
                targets = [i for i, a in enumerate(argins) if a.kind is kind and i not in own]
            elif key in exact:
                targets = [exact[key]]
            else:
                self._tell(f"hyperparameter {key!r} has no argin in this PEF and is ignored")
            for i in targets:
                try:
                    changes[i] = float(value)
                except (TypeError, ValueError):
                    raise ArgumentError(
                        where=f"session.run(hyperparam_dict[{key!r}])",
                        found=repr(value),
                        wanted="a number",
                    ) from None
        return tuple(changes.items())

    def _own_prefix(self) -> set[int]:
        """Argins of optimizers that have an ``argin_region_name`` of their own."""
        by_region = {a.region: i for i, a in enumerate(self.program.argins)}
        return {
            by_region[region]
            for optimizer in self.program.optimizers
            for key, region in optimizer.argins
            if self.program.argins[by_region[region]].name
            not in (key, f"{optimizer.name}__{key}")
        }

    def _apply(self, changes: Sequence[tuple[int, float]], train: bool) -> None:
        device = self.device
        for index, value in changes:
            if index in self._rates:
                self._rates[index] = value
            elif device.argin(index) != value:
                device.set_argin(index, value)
        self._training = train
        for index, rate in self._rates.items():
            wanted = rate if train else 0.0
            if device.argin(index) != wanted:
                device.set_argin(index, wanted)

    def _seed(self, grads: Any) -> None:
        if isinstance(grads, torch.Tensor):
            grads = (grads,)
        outputs = self.program.graphs[0].outputs
        grads = tuple(grads)
        if len(grads) > len(outputs):
            raise ArgumentError(
                where="session.run(grad_of_outputs=...)",
                found=f"{len(grads)} gradients",
                wanted=f"at most one for each of the {len(outputs)} outputs",
            )
        pairs = [(o, g) for o, g in zip(outputs, grads, strict=False) if g is not None]
        for output, grad in pairs:
            if output.grad_region < 0:
                raise NoGradient(operation="session.run(grad_of_outputs=...)", name=output.name)
            array = view_as_numpy(grad)
            self.device.check(
                output.grad_region, array.shape, array.dtype, name=f"{output.name}__grad"
            )
        for output, grad in pairs:
            self.device.write(output.grad_region, view_as_numpy(grad))

    def _tell(self, text: str) -> None:
        """Log a warning once per device."""
        if text not in self._told:
            self._told.add(text)
            _log.warning(text)


def _pairs(inputs: Any) -> list[tuple[str, Any]]:
    if isinstance(inputs, torch.Tensor):
        return [("", inputs)]
    if isinstance(inputs, Mapping):
        return list(inputs.items())
    if isinstance(inputs, (tuple, list)):
        flat: list[tuple[str, Any]] = []
        for item in inputs:
            if isinstance(item, (tuple, list)):
                flat.extend(("", inner) for inner in item)
            else:
                flat.append(("", item))
        return flat
    raise ArgumentError(
        where="session.run(input_tensors=...)",
        found=type(inputs).__name__,
        wanted="a tensor, a tuple, a list, a dict or None",
    )


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return [value] if isinstance(value, str) else list(value)


def _flat(ids: Any) -> list[int]:
    flat: list[int] = []
    for item in ids or ():
        flat.extend(_flat(item) if isinstance(item, (list, tuple)) else [int(item)])
    return flat


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype(tensor: torch.Tensor) -> str:
    return _name(tensor.dtype)
