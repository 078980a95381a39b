"""Names in the loaded program: of weights, section types, hyperparameters, optimizer state."""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING

import torch

from pef_schema.program import ArginKind, Role
from samba.sambatensor import SambaTensor
from samba.session.program_slot import ProgramSlot
from samba.support.ordered_set import OrderedSet
from samba.tracer.traced import FROM_DTYPE

if TYPE_CHECKING:
    from samba.session.loaded import (
        Loaded,
    )  # loads jax

__all__ = ["LoadedNames"]


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
    found = loaded()
    if found is None:
        return torch.zeros(tensor.shape, dtype=tensor.dtype)
    return found.host_state(region)
