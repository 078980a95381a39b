"""Plans: a list of section calls compiled to one donating executable."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import jax

from emulator.counters import Making, Source
from emulator.kernels.target import lowered_for, target_of
from emulator.lowering.index_watch import Watched, checked_call, watched_indices
from emulator.lowering.node_cache import shared_forms
from emulator.lowering.variant import Variant
from emulator.memory.buckets import BufferMap
from emulator.memory.budget import MeasuredMemory, check_plan, measured_memory
from emulator.memory.pool import Placement
from emulator.plans.calls import direct_call, ended_call, joint_call, operation_of, taker
from emulator.plans.composition import Composition, composed
from emulator.plans.executable_cache import ArrayForm, Executable, compiled_or_kept, load_kept
from emulator.plans.footprint import Signature, footprint, signature
from emulator.plans.fusion import jitted_as_planned
from emulator.plans.kept_plans import KeptPlan, KeptPlans
from emulator.plans.linked.compiling import link, linked_call
from emulator.plans.linked.parts import parts_of
from emulator.plans.steps import StepKey, failures_of_plan
from emulator.plans.traced import check_traced_sizes
from emulator.plans.xla_options import xla_options
from emulator.trace_settings import full_products, wide_types
from pef_schema.program import Program, SectionKind

_UNWATCHED: Watched = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A prepared run.

    Args:
        call: The compiled executable, a function of arrays in the order of ``reads``. It holds
            signals back where it has to; only ``Device.run`` may call it.
        executables: What it calls, as jax describes it: one ``jax.stages.Compiled``, or those of
            its parts, each once.
        memory: What it takes of memory; None where the backend does not say.
        reads: Buffers it takes; the first ``donated`` of them are consumed. A buffer's number is
            that of its region, or that of a bucket of regions, see ``emulator.memory.buckets``.
        writes: Buffers it gives back, in order.
        drops: Transient regions whose contents are void afterwards.
        checks: Transient regions it takes, which an earlier run must have left.
        donated: How many of ``reads`` are donated.
        overwritten: Those of ``reads`` whose contents do not matter.
        kinds: Kinds of the steps it runs.
        wide: Whether an argument has a 64-bit type, which a host array then has, too.
        making: How its executable was made.
    """

    call: Callable[..., Any]
    executables: tuple[Any, ...]
    memory: MeasuredMemory | None
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    drops: tuple[int, ...]
    checks: tuple[int, ...]
    donated: int
    overwritten: frozenset[int]
    kinds: frozenset[SectionKind]
    wide: bool
    making: Making
    take: Callable[[Sequence[Any]], tuple[Any, ...]] = field(init=False, repr=False)
    stores: tuple[int, ...] = field(init=False, repr=False)
    voids: tuple[tuple[None, ...], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "take", taker(self.reads))
        # What a run stores, in its order: its results, then nothing where contents are void.
        object.__setattr__(self, "stores", self.writes + self.drops)
        object.__setattr__(self, "voids", ((None,) * len(self.drops),))


def compile_plan(
    program: Program,
    buffer_map: BufferMap,
    steps: StepKey,
    variant: Variant,
    placement: Placement,
    watched: Watched = _UNWATCHED,
    *,
    whole: bool = False,
    kept: KeptPlans | None = None,
    meanwhile: Callable[[Signature], None] | None = None,
) -> Plan:
    """Compose steps and compile them; takes up to seconds, where they are not in the cache.

    They are one executable, or on one processor several that follow one another, where layers are
    equal and share theirs (``emulator.plans.linked``).

    Args:
        program: The program.
        buffer_map: Which buffers hold its regions.
        steps: ``(section, step of the section)`` pairs in the order to run.
        variant: What to specialise for.
        placement: The chips where to run, and what each of them has of a buffer.
        watched: Indices to look at: the plan raises where one is out of range, and then has
            consumed nothing.
        whole: Whether it has to be one executable.
        kept: The program's plans in the cache; None to leave the cache of plans alone.
        meanwhile: What to do with the plan's buffers while executables of the cache are loaded.

    Returns:
        The plan.

    Raises:
        LoweringError: If a node cannot be lowered; it names the node and its line.
        PlanError: If the steps cannot be compiled for another reason.
        OutOfMemory: If the plan needs more memory than the device may take.
    """
    start = time.perf_counter()
    chips = placement.chips
    with failures_of_plan(program, steps, "compiling"), wide_types():
        composition = composition_of(program, buffer_map, steps, variant, watched)
        key = "" if kept is None else kept.key(composition, whole=whole)
        made = None
        if kept is not None:
            made = _recalled(kept, key, composition, placement, start, meanwhile)
        if made is None:
            made = _made(composition, placement, start, whole=whole)
            if kept is not None and made.kept is not None:
                kept.keep(key, made.kept)
        check_plan(made.memory, f"program {program.name}: a run of {len(steps)} step(s)", chips)
    if chips.processes is not None:
        names = [
            program.regions[buffer_map.first_region(home)].name
            for home in composition.signature.takes
        ]
        operation = operation_of(program, steps, variant)
        call = joint_call(made.call, chips.processes, operation, names)
    else:
        call = ended_call(made.call) if chips.waits else made.call
    touched, buffers = composition.footprint, composition.signature
    if composition.watched:
        call = checked_call(call, program, composition.watched)
    return Plan(
        call=call,
        executables=made.executables,
        memory=made.memory,
        reads=buffers.takes,
        writes=buffers.gives,
        drops=tuple(sorted(touched.drops)),
        checks=buffers.checks,
        donated=0 if composition.watched else buffers.donated,
        overwritten=buffers.overwritten,
        kinds=frozenset(program.sections[s].steps[k].kind for s, k in steps),
        wide=any(buffer_map.form(home)[1].itemsize == 8 for home in buffers.takes),
        making=made.making,
    )


def lower_plan(
    program: Program,
    buffer_map: BufferMap,
    steps: StepKey,
    variant: Variant,
    placement: Placement,
    *,
    platform: str = "",
) -> Any:
    """Lower steps without compiling them: what fails then would fail in :func:`compile_plan`.

    Args:
        program, buffer_map, steps, variant, placement: As for :func:`compile_plan`.
        platform: What to lower for, as jax names platforms; that of the chips if empty. None of
            its devices is needed.

    Returns:
        A ``jax.stages.Lowered``.

    Raises:
        LoweringError: If a node cannot be lowered; it names the node and its line.
        PlanError: If the steps cannot be lowered for another reason.
    """
    with failures_of_plan(program, steps, "lowering"):
        composition = composition_of(program, buffer_map, steps, variant)
        with traceable(
            composition, platform or placement.chips.first.platform, placement
        ) as jitted:
            traced = _traced(jitted, composition, placement)
            return traced.lower(lowering_platforms=(platform,) if platform else None)


def composition_of(
    program: Program,
    buffer_map: BufferMap,
    steps: StepKey,
    variant: Variant,
    watched: Watched = _UNWATCHED,
) -> Composition:
    """All that the function of some steps depends on.

    Args:
        program, buffer_map, steps, variant, watched: As for :func:`compile_plan`.
    """
    touched = footprint(program, steps, variant)
    return Composition(
        program=program,
        buffer_map=buffer_map,
        steps=steps,
        variant=variant,
        footprint=touched,
        signature=signature(program, buffer_map, touched),
        watched=watched_indices(program, steps, watched),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """What XLA has made of composed steps.

    Args:
        call, executables, memory, making: As for :class:`Plan`.
        kept: What another process needs to run it; None where it cannot.
    """

    call: Callable[..., Any]
    executables: tuple[Any, ...]
    memory: MeasuredMemory | None
    making: Making
    kept: KeptPlan | None = None


def _recalled(
    kept: KeptPlans,
    key: str,
    composition: Composition,
    placement: Placement,
    start: float,
    meanwhile: Callable[[Signature], None] | None,
) -> _Made | None:
    """Load what an earlier process has made of the same steps; None where it is not there."""
    found = kept.recall(key)
    if found is None:
        return None
    form, buffers = composition.buffer_map.form, composition.signature
    takes = [ArrayForm.of(*form(home)) for home in buffers.takes]
    if not found.fits(takes, [ArrayForm.of(*form(home)) for home in buffers.gives]):
        kept.forget(key)
        return None
    with ThreadPoolExecutor(1, "emulator-load") as pool:  # XLA loads without the interpreter's lock
        loading = pool.submit(_load, found, composition, placement)
        if meanwhile is not None:
            meanwhile(buffers)
        loaded = loading.result()
    if loaded is None:
        kept.forget(key)
        return None
    compiled = tuple([executable.compiled for executable in loaded])
    if found.chain is None:
        (only,) = compiled
        call = direct_call(only)
    else:
        call = linked_call(found.chain, [direct_call(one) for one in compiled], ())
    making = _making(loaded, start)
    return _Made(call=call, executables=compiled, memory=found.memory, making=making)


def _load(
    found: KeptPlan, composition: Composition, placement: Placement
) -> list[Executable] | None:
    """Load the executables of a plan; None if one is not in the cache any more."""
    chips = placement.chips
    loaded: list[Executable] = []
    with wide_types():  # jax's settings are those of a thread
        for about in found.executables:
            if chips.count > 1:  # the plan is one executable
                takes = [placement.sharding(home) for home in composition.signature.takes]
                gives = _result_places(composition, placement)
            else:
                takes = [chips.sharding(-1)] * len(about.takes)
                gives = [chips.sharding(-1)] * len(about.gives)
            executable = load_kept(about, xla_options(chips.first), takes, gives)
            if executable is None:
                return None
            loaded.append(executable)
    return loaded


def _made(composition: Composition, placement: Placement, start: float, *, whole: bool) -> _Made:
    """Trace composed steps and have XLA compile them, in parts where layers are equal."""
    chips, donated = placement.chips, composition.signature.donated
    platform = chips.first.platform
    is_cpu = platform == "cpu"
    found: list[Executable] = []

    def compiled(lowered: Any) -> Any:
        found.append(compiled_or_kept(lowered, xla_options(chips.first)))
        return found[-1].compiled

    chain, constants = None, ()
    with traceable(composition, platform, placement) as jitted:
        traced = _traced(jitted, composition, placement)
        divided = None
        if is_cpu and chips.count == 1 and not (whole or composition.watched or chips.processes):
            divided = parts_of(traced.jaxpr, donated)
        if divided is not None:
            linked = link(traced.jaxpr, divided, compiled, chips.sharding(-1))
            call, executables, memory = linked.call, linked.executables, linked.memory
            chain, constants = linked.chain, linked.constants
        else:
            if is_cpu:
                jitted = jitted_as_planned(
                    traced.jaxpr, sharing=chips.count == 1, **jit_settings(composition, placement)
                )
                traced = jitted.trace(*_shapes(composition, placement))
            only = compiled(traced.lower())
            call, executables, memory = direct_call(only), (only,), measured_memory(only)
    abouts = [executable.kept for executable in found if executable.kept is not None]
    kept = None
    if len(abouts) == len(found) and not constants:
        kept = KeptPlan(executables=tuple(abouts), chain=chain, memory=memory)
    return _Made(
        call=call,
        executables=executables,
        memory=memory,
        making=_making(found, start),
        kept=kept,
    )


def _making(executables: Sequence[Executable], start: float) -> Making:
    """How executables were made since a point in time."""
    seconds = sum(executable.seconds for executable in executables)
    return Making(
        source=max([e.source for e in executables], key=[*Source].index),  # CACHE if all are there
        lowering_seconds=time.perf_counter() - start - seconds,
        xla_seconds=seconds,
    )


def _traced(jitted: Any, composition: Composition, placement: Placement) -> Any:
    """The function of composed steps as a ``jax.stages.Traced``."""
    traced = jitted.trace(*_shapes(composition, placement))
    check_traced_sizes(traced.jaxpr)
    return traced


def _shapes(composition: Composition, placement: Placement) -> list[jax.ShapeDtypeStruct]:
    """What the function of composed steps takes."""
    form = composition.buffer_map.form
    return [
        jax.ShapeDtypeStruct(*form(home), sharding=placement.sharding(home))
        for home in composition.signature.takes
    ]


def jit_settings(composition: Composition, placement: Placement | None) -> dict[str, Any]:
    """How jax compiles the function of composed steps.

    Args:
        composition: The steps.
        placement: The chips where to run, among which its results are divided; None for one.

    Returns:
        Arguments of ``jax.jit``.
    """
    donated = () if composition.watched else tuple(range(composition.signature.donated))
    settings: dict[str, Any] = {"donate_argnums": donated, "keep_unused": True}
    if placement is not None and placement.chips.count > 1:
        settings["out_shardings"] = tuple(_result_places(composition, placement))
    return settings


def _result_places(composition: Composition, placement: Placement) -> list[jax.sharding.Sharding]:
    """How the results of composed steps are divided among chips: what it writes, what it checks."""
    gives = [placement.sharding(home) for home in composition.signature.gives]
    return [*gives, *[placement.chips.sharding(-1)] * len(composition.watched)]


@contextmanager
def traceable(
    composition: Composition, platform: str, placement: Placement | None = None
) -> Generator[Any, None, None]:
    """While active, jax traces the function of composed steps as every plan is traced.

    Args:
        composition: The steps.
        platform: What it is traced for, as jax names platforms.
        placement: The chips where to run; None for one.

    Returns:
        A context with the function, jitted; it consumes what the plan consumes.
    """
    chips = 1 if placement is None else placement.chips.count
    on_each = placement.chips.sharding(-1) if placement is not None and chips > 1 else None
    settings = jit_settings(composition, placement)
    target = lowered_for(target_of(platform, chips), on_each)
    with wide_types(), full_products(), shared_forms(), target:
        yield jax.jit(composed(composition), **settings)  # pyright: ignore[reportUnknownMemberType]  # jax types it in part


def rebind(plan: Plan, places: Mapping[int, int]) -> Plan:
    """The same executable over other memory.

    Args:
        plan: A plan over regions that have buffers of their own.
        places: Region for region of the plan.

    Returns:
        A plan that shares ``plan.call``.
    """

    def at(regions: Iterable[int]) -> tuple[int, ...]:
        return tuple([places[r] for r in regions])

    return replace(
        plan,
        reads=at(plan.reads),
        writes=at(plan.writes),
        drops=at(plan.drops),
        checks=at(plan.checks),
        overwritten=frozenset(at(plan.overwritten)),
    )
