"""The suites of ``python -m bench run``: each asks workers and adds to the results."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from bench.measurement import OURS, Results
from bench.process import Worker

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How much is measured.

    Args:
        cases: Names of cases.
        contenders: Names of contenders.
        rounds: Turns of each contender.
        round_seconds: About how long a turn lasts.
        warm_seconds: Least time for warming up.
        threads: Processor cores for each contender.
        small: Whether to take the small forms of cases.
        quick: Whether to leave out what takes minutes whatever the other settings.
        caches: A folder for compilers' caches; what an earlier suite left there is used.
        tell: Called with a line about what goes on.
    """

    cases: Sequence[str]
    contenders: Sequence[str]
    rounds: int
    round_seconds: float
    warm_seconds: float
    threads: int
    small: bool = False
    quick: bool = False
    caches: Path
    tell: Callable[[str], None] = print

    def steps_in_turn(self, seconds: float) -> int:
        """How many steps a turn has if one takes so many seconds."""
        return max(1, round(self.round_seconds / seconds))

    @contextlib.contextmanager
    def worker(self, case: str, contender: str, *, cache: str = "") -> Iterator[Worker]:
        """A worker that is closed at the end.

        Args:
            case: Name of the case.
            contender: Name of the contender.
            cache: Name of a folder for compilers' caches, that of the case if empty.
        """
        worker = self.start(case, contender, cache=cache)
        try:
            yield worker
        finally:
            worker.close()

    def start(
        self,
        case: str,
        contender: str,
        *,
        cache: str = "",
        environ: Mapping[str, str] = MappingProxyType({}),
    ) -> Worker:
        """A worker that the caller closes; ``environ`` are further environment variables."""
        # With a cache of jax's this project would not use its own.
        own = {"JAX_COMPILATION_CACHE_DIR": ""} if contender == OURS else {}
        return Worker(
            case=case,
            contender=contender,
            threads=self.threads,
            small=self.small,
            environ={**cache_variables(self.caches / (cache or case)), **own, **environ},
        )


def cache_variables(folder: Path) -> Mapping[str, str]:
    """Environment that sends every compiler's cache to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    return {
        "XDG_CACHE_HOME": str(folder),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "EMULATOR_CACHE": str(folder / "executables"),
        # jax keeps executables only where it is asked to, and then only slow ones.
        "JAX_COMPILATION_CACHE_DIR": str(folder / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


Suite = Callable[[Settings, Results], None]
"""Measures according to settings and adds what it finds."""


def in_turns(rounds: int, samplers: Mapping[T, Callable[[], float]]) -> dict[T, list[float]]:
    """Take samples of several in turns, so that a machine that slows down slows all of them.

    Args:
        rounds: Samples of each.
        samplers: What takes a sample.

    Returns:
        The samples; those of one place were taken one after the other.
    """
    names = list(samplers)
    values: dict[T, list[float]] = {name: [] for name in names}
    for r in range(rounds if names else 0):
        # The first one finds other data in the caches than the rest, so each is the first in turn.
        first = r % len(names)
        for name in names[first:] + names[:first]:
            values[name].append(samplers[name]())
    return values
