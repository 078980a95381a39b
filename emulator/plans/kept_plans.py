"""Plans that outlive the process: one that was compiled before is neither traced nor lowered again.

A plan follows from its program, from what it is specialised for, from this project's code, and from
jax with its settings. All of these are its key; what is kept under it names the executables and
says how they follow one another. The executables themselves are kept by their own content, see
``emulator.plans.executable_cache``.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from typing import Any, cast

import jax

from emulator.handler_errors import raise_error_of_handler
from emulator.kept_files import KeptFiles, kept_files
from emulator.memory.budget import MeasuredMemory
from emulator.mesh.chips import Chips
from emulator.native.library import native_version
from emulator.ops.registry import has_foreign_ops
from emulator.plans.composition import Composition
from emulator.plans.executable_cache import (
    ArrayForm,
    KeptExecutable,
    are_kept,
    digest_of,
    surroundings,
)
from emulator.plans.linked.compiling import Chain, Link
from emulator.plans.own_code import FILES, is_as_imported
from emulator.plans.xla_options import xla_options
from pef_schema import program_digest
from pef_schema.program import Program

_LOG = logging.getLogger(__name__)

_LIMIT = 1 << 26
"""Most bytes of plans that are kept; one takes some kilobytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPlan:
    """What another process needs to run a plan that was compiled.

    Args:
        executables: The plan's executables.
        chain: How they follow one another; None for a single one.
        memory: What it takes of memory; None where the backend does not say.
    """

    executables: tuple[KeptExecutable, ...]
    chain: Chain | None = None
    memory: MeasuredMemory | None = None

    def fits(self, takes: Sequence[ArrayForm], gives: Sequence[ArrayForm]) -> bool:
        """Whether it is a plan of such arguments whose first results are such.

        Args:
            takes: What the plan takes.
            gives: What it gives first.
        """
        if self.chain is None:
            if len(self.executables) != 1:
                return False
            (only,) = self.executables
            arguments, results = only.takes, only.gives
        else:
            arguments, results = tuple(takes), _results(self.executables, self.chain, takes)
        return arguments == tuple(takes) and results[: len(gives)] == tuple(gives)


class KeptPlans:
    """The plans of one program in the cache.

    Args:
        program: The program.
        chips: Where it runs.
    """

    def __init__(self, program: Program, chips: Chips) -> None:
        self._program, self._chips = program, chips

    def key(self, composition: Composition, *, whole: bool) -> str:
        """The name of a plan in the cache.

        Args:
            composition: Its steps, with all that their function depends on.
            whole: Whether it has to be one executable.

        Returns:
            The name; empty where plans are not kept: of several processes' chips, where executables
            are not kept, and where operations or functions are in use whose code is not this
            project's.
        """
        if self._chips.processes or not are_kept():
            return ""
        if has_foreign_ops() or not is_as_imported():
            return ""
        buckets = len(composition.buffer_map.buckets)
        own = composition.steps, composition.variant.facts, buckets, composition.watched, whole
        return digest_of(
            self._digest,
            repr(own).encode(),
            self._surroundings,
            _settings(),
            native_version().encode(),
        )

    def recall(self, key: str) -> KeptPlan | None:
        """What is kept under a name; None if that is nothing, or nothing of a known form.

        Args:
            key: The name.
        """
        files = _files() if key else None
        data = None if files is None else files.get(key)
        if files is None or data is None:
            return None
        try:
            return _read(json.loads(data))
        except (ValueError, TypeError, KeyError) as error:
            raise_error_of_handler(error)
            _LOG.info("a cached plan cannot be read, so it is made again: %s", error)
            files.drop(key)
            return None

    def keep(self, key: str, plan: KeptPlan) -> None:
        """Keep a plan for later processes.

        Args:
            key: Its name; nothing is kept under an empty one.
            plan: The plan.
        """
        files = _files() if key else None
        if files is not None:
            files.put(key, json.dumps(_as_json(plan), separators=(",", ":")).encode())

    def forget(self, key: str) -> None:
        """Drop a plan, as one whose executables are gone.

        Args:
            key: Its name.
        """
        files = _files()
        if files is not None:
            files.drop(key)

    @cached_property
    def _digest(self) -> bytes:
        return program_digest(self._program).encode()

    @cached_property
    def _surroundings(self) -> bytes:
        chips = self._chips
        options = sorted(xla_options(chips.first).items())
        return repr((surroundings(chips.devices), chips.split.name, options, FILES)).encode()


def _results(
    executables: Sequence[KeptExecutable], chain: Chain, takes: Sequence[ArrayForm]
) -> tuple[ArrayForm, ...]:
    """What a chain gives; nothing where its calls do not fit together."""
    values = dict(enumerate(takes))
    for link in chain.links:
        if not 0 <= link.executable < len(executables):
            return ()
        called = executables[link.executable]
        forms = tuple([values.get(place) for place in link.takes])
        if forms != called.takes or len(link.gives) != len(called.gives):
            return ()
        values.update(zip(link.gives, called.gives, strict=True))
        for place in link.ends:
            values.pop(place, None)
    known = values.keys() >= {*chain.results} and max(values, default=0) < len(takes) + chain.made
    return tuple([values[place] for place in chain.results]) if known else ()


def _files() -> KeptFiles | None:
    return kept_files("plans", limit=_LIMIT)


def _settings() -> bytes:
    """Jax's settings as this thread has them; also those that change no plan, as they are many."""
    config = cast("Any", jax.config)
    return repr([(n, getattr(config, n, v)) for n, v in sorted(config.values.items())]).encode()


def _as_json(plan: KeptPlan) -> dict[str, Any]:
    """A plan as JSON has it."""
    return {
        "executables": [
            {
                "name": e.name,
                "takes": [[list(f.shape), f.dtype] for f in e.takes],
                "gives": [[list(f.shape), f.dtype] for f in e.gives],
                "donated": e.donated,
                "native": e.native,
                "lapack": e.lapack,
            }
            for e in plan.executables
        ],
        "chain": None
        if plan.chain is None
        else {
            "links": [[k.executable, k.takes, k.gives, k.ends] for k in plan.chain.links],
            "made": plan.chain.made,
            "results": plan.chain.results,
        },
        "memory": None if plan.memory is None else astuple(plan.memory),
    }


def _read(content: Any) -> KeptPlan:
    """The plan of :func:`_as_json`."""
    chain, memory = content["chain"], content["memory"]
    executables = [
        KeptExecutable(
            name=str(e["name"]),
            takes=_forms(e["takes"]),
            gives=_forms(e["gives"]),
            donated=int(e["donated"]),
            native=bool(e["native"]),
            lapack=bool(e["lapack"]),
        )
        for e in content["executables"]
    ]
    return KeptPlan(
        executables=tuple(executables),
        chain=None
        if chain is None
        else Chain(
            links=tuple(
                [
                    Link(executable=e, takes=tuple(takes), gives=tuple(gives), ends=tuple(ends))
                    for e, takes, gives, ends in chain["links"]
                ]
            ),
            made=int(chain["made"]),
            results=tuple(chain["results"]),
        ),
        memory=None
        if memory is None
        else MeasuredMemory(
            **dict(zip(("argument", "output", "alias", "temp"), memory, strict=True))
        ),
    )


def _forms(pairs: Any) -> tuple[ArrayForm, ...]:
    return tuple([ArrayForm(shape=tuple(shape), dtype=dtype) for shape, dtype in pairs])
