"""Names in the loaded program: of weights, section types, hyperparameters, optimizer state."""

from __future__ import annotations

from collections.abc import KeysView

from pef_schema.program import ArginKind, Role
from samba.sambatensor import SambaTensor
from samba.session.program_slot import ProgramSlot
from samba.tracer.traced import FROM_DTYPE

__all__ = ["LoadedNames"]


class LoadedNames:
    """Names and types that the loaded PEF holds.

    Args:
        slot: What is loaded.
    """

    def __init__(self, slot: ProgramSlot) -> None:
        self._slot = slot

    def get_weight_names(self) -> list[str]:
        """Names of all weights in the PEF."""
        program = self._slot.need("get_weight_names()").program
        return [s.name for s in program.symbols if program.regions[s.region].role is Role.WEIGHT]

    def get_section_types(self) -> set[str]:
        """Section types in the PEF, e.g. ``{"FWD", "BCKWD", "OPT"}``."""
        program = self._slot.need("get_section_types()").program
        return {kind.name for section in program.sections for kind in section.kinds}

    def get_argin_names(self) -> KeysView[str]:
        """Names of the hyperparameters that ``run`` takes, as an ordered set."""
        program = self._slot.need("get_argin_names()").program
        return dict.fromkeys(a.name for a in program.argins).keys()

    def get_dropout_rate_argin_names(self) -> list[str]:
        """Names of the argins that hold dropout rates."""
        return self._argins(ArginKind.DROPOUT_RATE, "get_dropout_rate_argin_names()")

    def get_dropout_seed_argin_names(self) -> list[str]:
        """Names of the argins that restart the dropout's random stream."""
        return self._argins(ArginKind.DROPOUT_SEED, "get_dropout_seed_argin_names()")

    def _argins(self, kind: ArginKind, operation: str) -> list[str]:
        return [a.name for a in self._slot.need(operation).program.argins if a.kind is kind]

    @property
    def optim_dict(self) -> dict[str, SambaTensor]:
        """Handles of the optimizer state on the device by name."""
        return {
            r.name: SambaTensor(shape=r.shape, dtype=FROM_DTYPE[r.dtype], name=r.name)
            for r in self._slot.need("optim_dict").program.regions
            if r.role is Role.OPTIMIZER_STATE
        }
