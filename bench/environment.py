"""Where results were measured: processor, versions and the state of the code."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.errors import BadResults, TwoProcessors
from bench.measurement import Results
from emulator.processor import Processor, processor


def environment(threads: int) -> dict[str, Any]:
    """What the numbers depend on: processor, versions and the state of the code."""
    here = processor()
    return {
        "processor": {**asdict(here), "isa": list(here.isa)},
        "cores": os.cpu_count(),
        "threads": threads,
        "system": f"{platform.system()} {platform.machine()}",
        "versions": {"python": platform.python_version()}
        | {name: version(name) for name in ("torch", "jax", "jaxlib", "numpy")},
        "commit": _commit(),
    }


def _commit() -> str:
    """The commit that was timed, with a plus if files were changed; empty outside git."""
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--exclude=*"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
        )
    except FileNotFoundError:
        return ""
    return done.stdout.strip()


def processor_of(results: Results, *, where: str = "results") -> Processor | None:
    """The processor that results were measured on.

    Args:
        results: The results.
        where: Where they come from, for errors.

    Returns:
        The processor; None where they say nothing of where they come from.

    Raises:
        BadResults: If what they say of it is something else.
    """
    data = results.environment.get("processor")
    if data is None:
        return None
    try:
        of = Processor(**{**data, "isa": tuple(data["isa"])})
    except (TypeError, KeyError) as error:
        raise BadResults(path=where, reason=f"no processor: {error!s:.200}") from error
    texts, numbers = (of.vendor, of.name, *of.isa), (of.family, of.model, of.stepping)
    if not all(type(t) is str for t in texts) or not all(type(n) is int for n in numbers):
        raise BadResults(path=where, reason="no processor: its fields have other types")
    return of


def check_one_processor(base: Results, head: Results, names: tuple[str, str]) -> None:
    """Make sure that two sets of results are of one processor.

    Args:
        base, head: The results.
        names: Where they come from.

    Raises:
        TwoProcessors: If they are not.
    """
    processors = [processor_of(r, where=name) for r, name in zip((base, head), names, strict=True)]
    if processors[0] != processors[1]:
        raise TwoProcessors(names=names, processors=(described(base), described(head)))


def described(results: Results) -> str:
    """The processor of results in words."""
    measured_on = processor_of(results)
    return "a processor that is not named" if measured_on is None else str(measured_on)


def heading(results: Results) -> str:
    """A line about where results come from: it stands over every table.

    Example:
        >>> heading(Results())
        'processor: a processor that is not named'
    """
    e = results.environment
    parts = [f"processor: {described(results)}"]
    if "threads" in e:
        parts.append(f"{e['threads']} threads")
    parts += [f"{k} {v}" for k, v in dict(e.get("versions", {})).items()]
    if e.get("commit"):
        parts.append(f"commit {e['commit']}")
    return ", ".join(parts)
