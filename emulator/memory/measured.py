"""What an executable says of its memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["MeasuredMemory", "measured_memory"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredMemory:
    """Bytes that an executable takes, as XLA has laid them out.

    Args:
        argument: Of its arguments.
        output: Of its results, with the list of their places.
        alias: Those of the results that take the place of an argument.
        temp: Of its intermediate values.

    Example:
        >>> MeasuredMemory(argument=100, output=80, alias=60, temp=7).peak
        127
    """

    argument: int
    output: int
    alias: int
    temp: int

    @property
    def peak(self) -> int:
        """All of them together."""
        return self.argument + self.output - self.alias + self.temp


def measured_memory(executable: Any) -> MeasuredMemory | None:
    """What an executable says of its memory.

    Args:
        executable: A ``jax.stages.Compiled``.

    Returns:
        Its bytes; None of a backend that does not say.
    """
    found = executable.memory_analysis()
    if found is None:
        return None
    return MeasuredMemory(
        argument=found.argument_size_in_bytes,
        output=found.output_size_in_bytes,
        alias=found.alias_size_in_bytes,
        temp=found.temp_size_in_bytes,
    )
