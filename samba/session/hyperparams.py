"""Hyperparameters of ``session.run``: from the keys a script uses to argins of the program.

The seeds of random streams are argins, too; where the streams stand is read here, for checkpoints.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pef_schema.printable import some_of
from pef_schema.program import ArginKind, Program
from samba.errors import ArgumentError, described, literal
from samba.support.deviations import Deviations
from samba.support.given import as_number

if TYPE_CHECKING:
    from emulator.device import Device

GROUP_KEYS = {
    "lr": ArginKind.LR,
    "momentum": ArginKind.MOMENTUM,
    "weight_decay": ArginKind.WEIGHT_DECAY,
    "p": ArginKind.DROPOUT_RATE,
}
"""Keys that mean every argin of a kind, except those of optimizers with a prefix of their own."""

_RANGES = {
    ArginKind.DROPOUT_RATE: (1.0, "a number from 0 to 1"),
    ArginKind.DROPOUT_SEED: (2.0**32 - 1, f"a whole number from 0 to {2**32 - 1}"),
}
_ANY = (float(np.finfo(np.float32).max), "a finite number, 0 or more, that float32 holds")
_MOST_IGNORED = 1000
"""How many unknown keys are kept, so that a warning names each of them once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropoutSettings:
    """Values that scripts have set so far.

    Args:
        rates: Dropout rates by argin index; kept apart, because evaluation overrides them.
        training: Whether the rates are honoured.
    """

    rates: Mapping[int, float]
    training: bool


class Hyperparameters:
    """The argins of a program, by the keys that scripts use.

    Args:
        program: The loaded program.
    """

    def __init__(self, program: Program) -> None:
        self._argins = program.argins
        self._targets = _targets(program)
        self._deviations = Deviations()
        self._ignored: set[str] = set()
        self.seeds = frozenset(
            i for i, a in enumerate(program.argins) if a.kind is ArginKind.DROPOUT_SEED
        )
        """Argins that act whenever they are given, not only where they differ."""
        self.initial = DropoutSettings(
            rates={
                i: a.default
                for i, a in enumerate(program.argins)
                if a.kind is ArginKind.DROPOUT_RATE
            },
            training=True,
        )

    def resolve(
        self, given: Mapping[str, Any], settings: DropoutSettings, train: bool
    ) -> tuple[dict[int, float], DropoutSettings]:
        """Find which argins a call sets, without setting them.

        Args:
            given: What the script passed.
            settings: What holds before the call.
            train: Whether dropout rates are honoured from now on.

        Returns:
            Values by argin index, in which a dropout rate is 0 unless ``train``, and what
            holds after the call.

        Raises:
            ArgumentError: If a value is not a number in the argin's range.
        """
        if not isinstance(given, Mapping):
            raise ArgumentError(
                where="session.run(hyperparam_dict=...)",
                found=type(given).__name__,
                wanted="a dict of numbers by name",
            )
        values: dict[int, float] = {}
        unknown: list[Any] = []
        for key, value in given.items():
            targets = self._targets.get(key)
            if targets is None:
                unknown.append(key)
                continue
            if not targets and self._of_kind(GROUP_KEYS[key]):
                names = ", ".join(self._of_kind(GROUP_KEYS[key]))
                self._deviations.tell(
                    "unknown-hyperparameter",
                    f"hyperparameter {key!r} has no effect: this PEF has {names} instead",
                )
            for index in targets:
                where = f"session.run(hyperparam_dict[{key!r}])"
                values[index] = self.number(where, value, index)
        self._tell_unknown(unknown)
        rates = {i: values.pop(i, rate) for i, rate in settings.rates.items()}
        for index, rate in rates.items():
            values[index] = rate if train else 0.0
        return values, DropoutSettings(rates=rates, training=train)

    def present(
        self,
        device: Device,
        groups: Mapping[int, tuple[str, Any]],
        settings: DropoutSettings,
    ) -> dict[str, float]:
        """What holds in the next run, by argin; without seeds, which belong to streams.

        Args:
            device: The device.
            groups: What parameter groups have, and where, by argin index.
            settings: Dropout rates.
        """
        values = {
            index: self.number(where, value, index) for index, (where, value) in groups.items()
        }
        values |= settings.rates
        return {
            argin.name: values.get(index, device.argin(index))
            for index, argin in enumerate(self._argins)
            if index not in self.seeds
        }

    def put(
        self, device: Device, values: Mapping[str, float], settings: DropoutSettings
    ) -> DropoutSettings:
        """Let other values hold on a device.

        Args:
            device: The device.
            values: What :meth:`present` has given.
            settings: Dropout rates before.

        Returns:
            Dropout rates from now on.
        """
        rates, training = dict(settings.rates), settings.training
        for index, argin in enumerate(self._argins):
            if argin.name not in values or index in self.seeds:
                continue
            value = self.number("a hyperparameter", values[argin.name], index)
            if index in rates:
                rates[index] = value
                value = value if training else 0.0
            device.set_argin(index, value)
        return DropoutSettings(rates=rates, training=training)

    def _tell_unknown(self, keys: Sequence[Any]) -> None:
        """Name the keys of a call that no argin has, once each and all in one warning."""
        if not keys or len(self._ignored) >= _MOST_IGNORED:
            return
        new = {text: key for key in keys if (text := literal(key)) not in self._ignored}
        if not new:
            return
        self._ignored.update(list(new)[: _MOST_IGNORED - len(self._ignored)])
        names = [key for key in list(new.values())[:4] if isinstance(key, str)]
        near = [n for name in names for n in difflib.get_close_matches(name, self._targets, n=1)]
        known = ", ".join(k for k, t in self._targets.items() if t)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {known or 'none'}"
        one = f"hyperparameter {next(iter(new))} has no argin in this PEF and is ignored"
        many = (
            f"{len(new)} hyperparameters have no argin in this PEF and are ignored: "
            f"{some_of(list(new))}"
        )
        self._deviations.tell("unknown-hyperparameter", f"{many if len(new) > 1 else one}; {hint}")

    def _of_kind(self, kind: ArginKind) -> list[str]:
        return [a.name for a in self._argins if a.kind is kind]

    def number(self, where: str, value: Any, argin: int) -> float:
        """A value of an argin as a number.

        Args:
            where: Where the value was given, for the error.
            value: The value.
            argin: Number of the argin.

        Raises:
            ArgumentError: If it is not a number in the argin's range.
        """
        kind = self._argins[argin].kind
        number = as_number(value)
        largest, wanted = _RANGES.get(kind, _ANY)
        whole = kind is not ArginKind.DROPOUT_SEED or number.is_integer()
        if not (whole and 0.0 <= number <= largest):
            raise ArgumentError(
                where=where,
                found=described(value),
                wanted=wanted,
                hint="Nothing was run and no hyperparameter was changed.",
            )
        return number


def _prefixed(program: Program) -> frozenset[int]:
    """Argins of optimizers that have an ``argin_region_name`` of their own."""
    by_region = {a.region: i for i, a in enumerate(program.argins)}
    return frozenset(
        by_region[region]
        for optimizer in program.optimizers
        for key, region in optimizer.argins
        if program.argins[by_region[region]].name not in (key, f"{optimizer.name}__{key}")
    )


def _targets(program: Program) -> dict[str, tuple[int, ...]]:
    prefixed = _prefixed(program)
    targets = {
        key: tuple(i for i, a in enumerate(program.argins) if a.kind is kind and i not in prefixed)
        for key, kind in GROUP_KEYS.items()
    }
    for i, argin in enumerate(program.argins):
        targets.setdefault(argin.name, (i,))
    return targets


_BITS = 2**32


def _streams(device: Device) -> list[int]:
    argins = enumerate(device.program.argins)
    return [index for index, argin in argins if argin.kind is ArginKind.DROPOUT_SEED]


def random_state(device: Device) -> torch.Tensor:
    """Seed and position of each stream.

    Args:
        device: The device; its runs are waited for.

    Returns:
        int64 ``(streams, 2)``; ``(0, 2)`` of a program without random numbers. It is the same on
        every replica: what each draws follows from its rank, too.
    """
    rows = []
    for index in _streams(device):
        region = device.program.argins[index].region
        rows.append([int(device.argin(index)), int(device.read(region)[1])])
    return torch.tensor(rows, dtype=torch.int64).reshape(-1, 2)


def set_random_state(device: Device, state: Any) -> None:
    """Let streams go on from an earlier state.

    Args:
        device: The device; nothing changes there if this raises.
        state: What :func:`random_state` has given.

    Raises:
        ArgumentError: If it is not the state of a program with as many streams.
    """
    streams = _streams(device)
    good = (
        isinstance(state, torch.Tensor)
        and state.dtype == torch.int64
        and tuple(state.shape) == (len(streams), 2)
        and bool(((state >= 0) & (state < _BITS)).all())
    )
    if not good:
        raise ArgumentError(
            where="session.set_rng_state(state)",
            found=described(state),
            wanted=f"int64 [{len(streams)}, 2] as session.get_rng_state() gives: seeds and "
            "positions of 32 bits",
        )
    for index, (seed, position) in zip(streams, state.tolist(), strict=True):
        device.set_argin(index, float(seed))
        region = device.program.argins[index].region
        key = device.read(region)[0]  # the seed's, for this replica
        device.write(region, np.array([key, position], np.uint32))
