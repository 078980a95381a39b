"""The part of the session that tells what is loaded and what was done."""

from __future__ import annotations

from collections.abc import KeysView
from dataclasses import dataclass
from typing import TYPE_CHECKING

from samba.errors import NotLoaded

if TYPE_CHECKING:
    from pef_schema.program import ArginKind, Program
    from samba.distributed.replicas import Replicas
    from samba.session.loading import Loaded


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What a session did since it was made or reset.

    Args:
        traces: Models traced, by ``compile`` and ``trace_graph``.
        compiles: Plans that XLA compiled: one for each different selection of sections.
        runs: Plans run.
    """

    traces: int
    compiles: int
    runs: int


class Facts:
    """What the PEF holds, and how often what was done."""

    _loaded: Loaded | None
    _traces: int
    _compiles: int
    _runs: int

    def _need(self, operation: str) -> Loaded:
        if self._loaded is None:
            raise NotLoaded(operation=operation)
        return self._loaded

    def get_weight_names(self) -> list[str]:
        """Names of all weights in the PEF."""
        from pef_schema.program import Role

        program = self._need("get_weight_names()").program
        return [s.name for s in program.symbols if program.regions[s.region].role is Role.WEIGHT]

    def get_section_types(self) -> set[str]:
        """Section types in the PEF, e.g. ``{"FWD", "BCKWD", "OPT"}``."""
        program = self._need("get_section_types()").program
        return {kind.name for section in program.sections for kind in section.kinds}

    def get_argin_names(self) -> KeysView[str]:
        """Names of the hyperparameters that ``run`` takes, as an ordered set."""
        program = self._need("get_argin_names()").program
        return dict.fromkeys(a.name for a in program.argins).keys()

    def get_dropout_rate_argin_names(self) -> list[str]:
        """Names of the argins that hold dropout rates."""
        from pef_schema.program import ArginKind

        return self._argins(ArginKind.DROPOUT_RATE, "get_dropout_rate_argin_names()")

    def get_dropout_seed_argin_names(self) -> list[str]:
        """Names of the argins that restart the dropout's random stream."""
        from pef_schema.program import ArginKind

        return self._argins(ArginKind.DROPOUT_SEED, "get_dropout_seed_argin_names()")

    def _argins(self, kind: ArginKind, operation: str) -> list[str]:
        return [a.name for a in self._need(operation).program.argins if a.kind is kind]

    @property
    def program(self) -> Program | None:
        """The loaded program, None before ``trace_graph``."""
        return None if self._loaded is None else self._loaded.program

    def need_program(self, operation: str) -> Program:
        """The loaded program.

        Raises:
            NotLoaded: If there is none; ``operation`` says who asked.
        """
        return self._need(operation).program

    def need_replicas(self, operation: str) -> Replicas:
        """The replicas that run the loaded program.

        Raises:
            NotLoaded: If there is none; ``operation`` says who asked.
        """
        return self._need(operation).replicas

    def synchronize(self) -> None:
        """Wait until everything that was started on the device is done."""
        self._need("synchronize()").device.synchronize()

    @property
    def counters(self) -> Counters:
        """How often models were traced, and plans compiled and run, since the session began.

        Example:
            >>> import samba
            >>> samba.SambaSession().counters
            Counters(traces=0, compiles=0, runs=0)
        """
        device = None if self._loaded is None else self._loaded.device.counters
        return Counters(
            traces=self._traces,
            compiles=self._compiles + (0 if device is None else device.compiles),
            runs=self._runs + (0 if device is None else device.runs),
        )
