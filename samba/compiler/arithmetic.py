"""RDU arithmetic on request: which values are rounded to bfloat16, and how.

The device computes in the dtypes that a model is written in. GraphAMP presets and a cast mode,
both options of the compile, make float32 values as coarse as those of the hardware. Values keep
the dtype they were traced with.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from emulator.op_facts.precision import ARITHMETIC as METADATA, AS_WRITTEN
from samba.errors import ArgumentError


class Preset(enum.Enum):
    """GraphAMP presets."""

    MP0 = "mp0"
    """The model as written."""
    MP1 = "mp1"
    """Inputs of matrix products, convolutions and their like are rounded to bfloat16."""
    MP4 = "mp4"
    """Inputs and results of every operation are rounded to bfloat16."""


class Bf16Cast(enum.Enum):
    """Ways of rounding float32 to bfloat16."""

    NEAREST_EVEN = "nearest_even"
    """To the nearest, ties to even: what torch does."""
    TRUNCATION = "truncation"
    """Toward zero: the lower 16 bits are cut off."""
    STOCHASTIC = "stochastic"
    """Up or down at random, so that the mean is right; drawn from the seed region."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """The arithmetic of a program.

    Args:
        preset: What is rounded.
        cast: How it is rounded.
    """

    preset: Preset = Preset.MP0
    cast: Bf16Cast = Bf16Cast.NEAREST_EVEN

    @property
    def as_written(self) -> bool:
        """Whether a model is computed as torch computes it."""
        return self == Arithmetic()

    def __str__(self) -> str:
        return f"graphamp_preset={self.preset.value} bf16_cast={self.cast.value}"

    def metadata(self) -> dict[str, str]:
        """The entry in the metadata of a PEF; none for a model as written."""
        return {} if self.as_written else {METADATA: str(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedArithmetic:
    """The arithmetic that options ask for; None where they say nothing."""

    preset: Preset | None
    cast: Bf16Cast | None

    def settled(self) -> Arithmetic:
        """The arithmetic, with the defaults of what was not said."""
        return Arithmetic(preset=self.preset or Preset.MP0, cast=self.cast or Bf16Cast.NEAREST_EVEN)


def wanted_arithmetic(config: Mapping[str, Any]) -> WantedArithmetic:
    """Read ``graphamp_preset``, ``bf16_cast`` and ``enable_stochastic_rounding``.

    Args:
        config: Parsed options by name.

    Returns:
        What they say; stochastic rounding is a cast mode.

    Raises:
        ArgumentError: If a value does not exist, or two options contradict each other.
    """
    preset = _member(Preset, config, "graphamp_preset")
    cast = _member(Bf16Cast, config, "bf16_cast")
    if config.get("enable_stochastic_rounding"):
        if cast not in (None, Bf16Cast.STOCHASTIC):
            raise ArgumentError(
                where="bf16_cast",
                found=f"{cast.value!r} together with enable_stochastic_rounding",
                wanted="one of the two, or 'stochastic'",
            )
        cast = Bf16Cast.STOCHASTIC
    return WantedArithmetic(preset=preset, cast=cast)


def _member(kind: Any, config: Mapping[str, Any], name: str) -> Any:
    value = config.get(name)
    if value is None or isinstance(value, kind):
        return value
    names = [member.value for member in kind]
    if value not in names:
        raise ArgumentError(where=name, found=repr(value), wanted=" or ".join(map(repr, names)))
    return kind(value)


def compiled_arithmetic(metadata: Mapping[str, str]) -> Arithmetic:
    """The arithmetic that a PEF was compiled with.

    Args:
        metadata: The PEF's metadata.

    Raises:
        ArgumentError: If it says something that does not exist.

    Example:
        >>> compiled_arithmetic({METADATA: "graphamp_preset=mp1 bf16_cast=truncation"}).cast
        <Bf16Cast.TRUNCATION: 'truncation'>
    """
    parts = metadata.get(METADATA, AS_WRITTEN).split()
    said = dict(part.split("=", 1) for part in parts if "=" in part)
    return wanted_arithmetic(said).settled()


class ArithmeticMismatch(ArgumentError):
    """A run asks for another arithmetic than the PEF was compiled with.

    Attributes:
        pef: Path of the PEF.
        differences: ``(option, asked for, compiled)`` for each that differs.
    """

    deviation = "compiled-arithmetic"

    def __init__(self, *, pef: str, differences: tuple[tuple[str, str, str], ...]) -> None:
        self.pef, self.differences = pef, differences
        super().__init__(
            where=pef,
            found=", ".join(f"{name}={wish}" for name, wish, _ in differences),
            wanted=", ".join(f"{name}={compiled}" for name, _, compiled in differences)
            + ", as it was compiled",
            hint="Leave these options out of the run, or compile again with them.",
        )


def check_arithmetic(wanted: WantedArithmetic, compiled: Arithmetic, *, pef: str) -> None:
    """Check what a run asks for against a PEF; what it does not say always fits.

    Raises:
        ArithmeticMismatch: If they differ.
    """
    pairs = (
        ("graphamp_preset", wanted.preset, compiled.preset),
        ("bf16_cast", wanted.cast, compiled.cast),
    )
    differences = tuple(
        (name, wish.value, there.value)
        for name, wish, there in pairs
        if wish is not None and wish is not there
    )
    if differences:
        raise ArithmeticMismatch(pef=pef, differences=differences)
