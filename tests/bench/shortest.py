"""Suites as short as can be, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.suites import Settings


def settings(
    folder: Path,
    *,
    cases: Sequence[str] = (),
    contenders: Sequence[str] = (),
    round_seconds: float = 0.0,
    threads: int = 1,
) -> Settings:
    """Two rounds of the small forms of cases, without warming up and in silence.

    Args:
        folder: For compilers' caches.
        cases, contenders, round_seconds, threads: As ``Settings`` has them.
    """
    return Settings(
        cases=cases,
        contenders=contenders,
        rounds=2,
        round_seconds=round_seconds,
        warm_seconds=0.0,
        threads=threads,
        small=True,
        caches=folder,
        tell=lambda text: None,
    )
