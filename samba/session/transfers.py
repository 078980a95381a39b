"""Tensors of the loaded program by name, and copies of them between host and device."""

from __future__ import annotations

import difflib
import weakref
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from pef_schema.program import ArginKind, Role
from samba.errors import ArgumentError, ConversionError, UnknownTensor, described, literal
from samba.sambatensor import SambaTensor
from samba.session.program_slot import ProgramSlot
from samba.session.request import listed
from samba.support.given import flag_of, names_of, text_of
from samba.support.ordered_set import OrderedSet
from samba.tensor.views import readable
from samba.tracer.traced import FROM_DTYPE

if TYPE_CHECKING:
    from samba.session.loaded import (
        Loaded,
    )  # loads jax


class LoadedNames:
    """Names and types that the PEF holds: the loaded one, else the one that the session names.

    Args:
        slot: What is loaded.
    """

    def __init__(self, slot: ProgramSlot) -> None:
        self._slot = slot

    def get_weight_names(self) -> list[str]:
        """Names of all weights in the PEF."""
        program = self._slot.program("get_weight_names()")
        return [s.name for s in program.symbols if program.regions[s.region].role is Role.WEIGHT]

    def get_section_types(self) -> set[str]:
        """Section types in the PEF, e.g. ``{"FWD", "BCKWD", "OPT"}``."""
        program = self._slot.program("get_section_types()")
        return {kind.name for section in program.sections for kind in section.kinds}

    def get_argin_names(self) -> OrderedSet[str]:
        """Names of the hyperparameters that ``run`` takes."""
        program = self._slot.program("get_argin_names()")
        return OrderedSet(a.name for a in program.argins)

    def get_dropout_rate_argin_names(self) -> list[str]:
        """Names of the argins that hold dropout rates."""
        return self._argins(ArginKind.DROPOUT_RATE, "get_dropout_rate_argin_names()")

    def get_dropout_seed_argin_names(self) -> list[str]:
        """Names of the argins that restart the dropout's random stream."""
        return self._argins(ArginKind.DROPOUT_SEED, "get_dropout_seed_argin_names()")

    def _argins(self, kind: ArginKind, operation: str) -> list[str]:
        return [a.name for a in self._slot.program(operation).argins if a.kind is kind]

    @property
    def output_dict(self) -> dict[str, SambaTensor]:
        """Handles of the program's outputs by name, as ``trace_graph`` has returned them."""
        return {output.sn_name: output for output in self._slot.need("output_dict").outputs}

    @property
    def optim_dict(self) -> dict[str, SambaTensor]:
        """Handles of the optimizer state on the device by name.

        ``rdu()`` of a handle sends what torch's optimizer holds; before the first step, what the
        state starts from.
        """
        loaded = self._slot.need("optim_dict")
        return {
            r.name: SambaTensor(
                shape=r.shape,
                dtype=FROM_DTYPE[r.dtype],
                name=r.name,
                materializer=partial(_host_state, weakref.ref(loaded), index),
            )
            for index, r in enumerate(loaded.program.regions)
            if r.role is Role.OPTIMIZER_STATE
        }


def _host_state(loaded: weakref.ref[Loaded], region: int, tensor: torch.Tensor) -> torch.Tensor:
    """What ``rdu()`` of a handle sends: the state that torch's optimizer has, zeros if none."""
    program = loaded()
    if program is None:
        return torch.zeros(tensor.shape, dtype=tensor.dtype)
    return program.host_state(region)


class Transfers:
    """Copies between host and device: whole models, their optimizers, and tensors by name.

    Args:
        slot: What is loaded.
    """

    def __init__(self, slot: ProgramSlot) -> None:
        self._slot = slot

    def to_cpu(self, model: torch.nn.Module, optims: Any = None, inplace: bool = False) -> None:
        """Copy parameters, buffers and optimizer state from the device to the host.

        Args:
            model: The model to update; for an ONNX model, the module made of it.
            optims: Its optimizers, None to leave their state alone.
            inplace: Whether host memory is written in place, so that everything that shares it
                sees the new values. Otherwise parameters, buffers and states, which stay the same
                tensors, get new memory, and what was taken before (``state_dict()``) stays as it
                is.
        """
        self._to_cpu(model, optims, inplace, "to_cpu")

    def to_cpu_(self, model: torch.nn.Module, optims: Any = None) -> None:
        """:meth:`to_cpu` in place."""
        self._to_cpu(model, optims, True, "to_cpu_")

    def _to_cpu(self, model: torch.nn.Module, optims: Any, inplace: bool, name: str) -> None:
        inplace = flag_of(inplace, f"session.{name}(inplace=...)")
        loaded = self._slot.need(f"{name}()")
        module = self._slot.onnx.module(model, f"session.{name}")
        loaded.to_cpu(module, optims, inplace=inplace, operation=f"{name}()")

    def to_rdu(self, model: torch.nn.Module, optims: Any = None) -> None:
        """Copy parameters, buffers and optimizer state from the host to the device.

        Args:
            model: The model to read.
            optims: Its optimizers, None to leave their state alone.
        """
        loaded = self._slot.need("to_rdu()")
        loaded.to_rdu(self._slot.onnx.module(model, "session.to_rdu"), optims)

    def optimizers_to_cpu(self, optims: Any) -> None:
        """Copy optimizer state alone from the device to the host.

        Args:
            optims: One optimizer of the program, or a list of them.
        """
        self._slot.need("optimizers_to_cpu()").optimizers_to_cpu(
            optims, operation="optimizers_to_cpu()"
        )

    def optimizers_to_rdu(self, optims: Any) -> None:
        """Copy optimizer state alone from the host to the device.

        Args:
            optims: One optimizer of the program, or a list of them.
        """
        self._slot.need("optimizers_to_rdu()").optimizers_to_rdu(
            optims, operation="optimizers_to_rdu()"
        )

    def to_device(self) -> None:
        """Copy everything that was traced from the host to the device."""
        loaded = self._slot.need("to_device()")
        loaded.to_device(frozenset(self._slot.forgotten))
        loaded.note_written()

    def sync_buffers_to_cpu(self, model: torch.nn.Module, inplace: bool = False) -> None:
        """Copy the model's buffers from the device to the host.

        Args:
            model: The model to update.
            inplace: Whether host memory is written in place; see :meth:`to_cpu`.
        """
        operation = "sync_buffers_to_cpu()"
        inplace = flag_of(inplace, "session.sync_buffers_to_cpu(inplace=...)")
        loaded = self._slot.need(operation)
        module = self._slot.onnx.module(model, "session.sync_buffers_to_cpu")
        loaded.to_cpu(module, None, buffers_only=True, inplace=inplace, operation=operation)

    def sync_buffers_to_rdu(self, model: torch.nn.Module) -> None:
        """Copy the model's buffers from the host to the device."""
        operation = "sync_buffers_to_rdu()"
        loaded = self._slot.need(operation)
        module = self._slot.onnx.module(model, "session.sync_buffers_to_rdu")
        loaded.to_rdu(module, None, buffers_only=True, operation=operation)

    def get_tensors(self, samba_tensors: Sequence[SambaTensor]) -> tuple[SambaTensor, ...]:
        """Fetch device memory of the given tensors.

        Args:
            samba_tensors: Tensors with the names to fetch; one tensor alone counts as a list.

        Returns:
            New tensors of the same names.

        Raises:
            SambaError: If the device does not know one of them, or holds no data for it.
        """
        where = "session.get_tensors(samba_tensors)"
        alone = isinstance(samba_tensors, torch.Tensor)
        tensors = [samba_tensors] if alone else listed(samba_tensors, where)
        if not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
            raise ArgumentError(
                where=where, found=described(tensors), wanted="SambaTensors in a list or a tuple"
            )
        return self._fetch("get_tensors()", [getattr(t, "sn_name", "") for t in tensors])

    def get_tensors_by_name(self, names: Sequence[str]) -> tuple[SambaTensor, ...]:
        """Fetch device memory by tensor or region name.

        Args:
            names: Names to fetch, those of gradients included; one name alone counts as a list.

        Returns:
            New tensors of these names.

        Raises:
            SambaError: If the device does not know one of them, or holds no data for it.
        """
        return self._fetch(
            "get_tensors_by_name()", names_of(names, "session.get_tensors_by_name(names)")
        )

    def _fetch(self, operation: str, names: Sequence[str]) -> tuple[SambaTensor, ...]:
        memory = self._slot.need(operation)
        for name in names:
            if not memory.knows(name):
                known = [other for other in self._slot.tensors if memory.knows(other)]
                near = difflib.get_close_matches(name, known, 3)
                raise UnknownTensor(operation=f"session.{operation}", name=name, near=near)
        return tuple(SambaTensor(memory.read(name), name=name) for name in names)

    def get_samba_tensor_by_name(self, name: str) -> SambaTensor:
        """The traced host tensor of a name; fetches nothing from the device.

        After ``trace_multigraph`` any result inside the module has a handle too, at which a
        ``FwdGraph`` may start or stop.

        Raises:
            ArgumentError: If no traced tensor has that name.
        """
        return self._named(name, "get_samba_tensor_by_name")

    def _named(self, name: str, function: str) -> SambaTensor:
        text_of(name, f"session.{function}(name)", "the name of a traced tensor")
        traces = self._slot.traces
        if traces is None:
            self._slot.need(f"{function}()")
        match = self._slot.tensors.get(name)
        if match is None and traces is not None:
            match = traces.inner(name)
        if match is None:
            close = difflib.get_close_matches(name, self._slot.tensors, 3)
            raise ArgumentError(
                where=f"session.{function}(name)",
                found=repr(name),
                wanted="the name of a traced tensor"
                + (f", such as {', '.join(close)}" if close else ""),
            )
        return match

    def update_tensor(self, name: str, tensor: SambaTensor | None) -> None:
        """Give a traced tensor new values on the host, or forget it with None.

        ``to_device`` takes the new values to the device, and leaves out what is forgotten.

        Args:
            name: Name of the traced tensor.
            tensor: New values of the same shape and dtype.

        Raises:
            ArgumentError: If no traced tensor has that name, or the values do not fit it.
            ConversionError: If it is not a tensor.
            NoHostData: If it is an empty tensor without a materializer.
        """
        where = f"session.update_tensor({literal(name)}, tensor)"
        if tensor is not None and not isinstance(tensor, torch.Tensor):
            raise ConversionError(
                where=where, found=described(tensor), wanted="a SambaTensor, a torch.Tensor or None"
            )
        traced = self._named(name, "update_tensor")
        if tensor is None:
            del self._slot.tensors[name]
            self._slot.forgotten.add(name)
            return
        if getattr(tensor, "has_data", True):
            readable(tensor, name)
        if traced.shape != tensor.shape or traced.dtype != tensor.dtype:
            raise ArgumentError(
                where=where,
                found=f"shape {list(tensor.shape)} {tensor.dtype}",
                wanted=f"shape {list(traced.shape)} {traced.dtype}",
            )
        values = tensor.torch_tensor() if isinstance(tensor, SambaTensor) else tensor
        values = values.detach()
        if traced.has_data:
            with torch.no_grad():
                traced.copy_(values)
        else:
            traced.data = values.clone()

    def traced_tensors(self) -> list[SambaTensor]:
        """Host tensors of the loaded model: inputs, parameters, buffers and output handles."""
        self._slot.need("_traced_tensors()")
        return list(self._slot.tensors.values())
