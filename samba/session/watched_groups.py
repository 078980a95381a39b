"""Hyperparameters in the parameter groups of torch optimizers, where schedulers change them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from emulator.handler_errors import raise_error_of_handler
from emulator.plans.steps import StepKey
from pef_schema.optimizer_rules import OPTIMIZER_RULES, settings_of
from pef_schema.program import Program, SectionKind
from samba.session.watching import Watcher
from samba.support.deviations import tell

_FIXED = sorted({name for rule in OPTIMIZER_RULES.values() for name in settings_of(rule)})
"""Settings of groups that a PEF holds as numbers: changing them needs a compile."""


class WatchedGroups(Watcher):
    """The parameter groups of a loaded program's optimizers.

    What the groups hold counts from the first run on, and a value that changes from the run after
    its change on, unless the run's ``hyperparam_dict`` gives that hyperparameter.

    Args:
        optimizers: The optimizers that the program was loaded with; none if it does not train.
        program: The program.
    """

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer], program: Program) -> None:
        self._program, self._optimizers = program, tuple(optimizers)
        groups = [(o, i) for o in optimizers for i in range(len(o.param_groups))]
        argins = {argin.region: number for number, argin in enumerate(program.argins)}
        self._entries = [
            (optimizer, index, key, argins[region])
            for (optimizer, index), entry in zip(groups, program.optimizers, strict=False)
            for key, region in entry.argins
        ]
        # What `changed` walks in every run: optimizers, how many groups they have, their entries.
        self._walk = [
            (o, len(o.param_groups), [(i, key) for other, i, key, _ in self._entries if other is o])
            for o in self._optimizers
        ]
        self._seen = self._present()
        self._values: list[Any] = [program.argins[argin].default for *_, argin in self._entries]
        self._fixed = {
            (number, index, key): _plain(group[key])
            for number, optimizer in enumerate(self._optimizers)
            for index, group in enumerate(optimizer.param_groups)
            for key in _FIXED
            if key in group
        }
        self._warned: set[tuple[int, int, str]] = set()

    @property
    def looks(self) -> bool:
        """Whether there are optimizers."""
        return bool(self._optimizers)

    def changed(self) -> bool:
        """Whether a value may be another than when it was taken last."""
        last = self._seen
        n = 0
        for optimizer, count, entries in self._walk:
            groups = optimizer.param_groups
            if len(groups) != count:
                return True
            for index, key in entries:
                value = groups[index][key]
                if value is not last[n] or type(value) is torch.Tensor:
                    return True
                n += 1
        return False

    def _present(self) -> list[Any]:
        return [o.param_groups[i][key] for o, _, entries in self._walk for i, key in entries]

    def values(self) -> dict[int, tuple[str, Any]]:
        """The values that have changed, by number of the argin, each with its place for errors."""
        changed = {}
        for (optimizer, index, key, argin), last in zip(self._entries, self._values, strict=True):
            value = _plain(optimizer.param_groups[index][key])
            try:
                differs = bool(value != last)
            except Exception as error:  # what a script's own class says; it is refused as no number
                raise_error_of_handler(error)
                differs = True
            if differs:
                name = type(optimizer).__name__
                changed[argin] = (f"{name}.param_groups[{index}][{key!r}]", value)
        return changed

    def take(self) -> None:
        """Make the present values those that were taken last."""
        self._seen = self._present()
        self._values = [_plain(value) for value in self._seen]

    def after(self, steps: StepKey) -> None:
        """A run has used the present values; if it made an update, schedulers may know of it."""
        self.take()
        sections = self._program.sections
        if any(sections[s].steps[k].kind is SectionKind.OPT for s, k in reversed(steps)):
            self.note_step()

    def note_step(self) -> None:
        """Let torch's schedulers know that the optimizers have made a step: on the device."""
        for optimizer in self._optimizers:
            optimizer._opt_called = True  # pyright: ignore[reportAttributeAccessIssue]  # what a scheduler asks before it warns

    def warn(self) -> None:
        """Warn of changes that a run cannot use."""
        for place, (optimizer, count, entries) in enumerate(self._walk):
            now = len(optimizer.param_groups)
            if now != count:
                self._walk[place] = (optimizer, now, entries)
                tell(
                    "added-group",
                    f"{type(optimizer).__name__} has {now} parameter groups, but had {count} when "
                    "it was loaded: the device trains only those in the PEF. Compile again with "
                    "all of them",
                )
        for (number, index, key), last in self._fixed.items():
            optimizer = self._optimizers[number]
            group: Mapping[str, Any] = optimizer.param_groups[index]
            now = _plain(group.get(key, last))
            if now != last and (number, index, key) not in self._warned:
                self._warned.add((number, index, key))
                tell(
                    "fixed-hyperparameter",
                    f"{type(optimizer).__name__}.param_groups[{index}][{key!r}] changed from "
                    f"{last} to {now}: the value in the PEF is fixed and stays in use. Compile "
                    "again to change it",
                )


def _plain(value: Any) -> Any:
    """The present content of a value: a tensor may be changed in place later."""
    return value.tolist() if isinstance(value, torch.Tensor) else value
