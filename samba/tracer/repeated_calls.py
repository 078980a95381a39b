"""Whether each call of ``forward`` computes what the first one does, as a graph in its place would.

A graph is traced from the state before the first call. If ``forward`` has changed a plain
attribute, a list, a global variable, has registered a hook, or a buffer that a program cannot
write, the model is traced again from the state after it, and from the one after that. What backward
passes of the model's own change counts, too. Another graph is refused. That all later calls give
the same one is certain once a call leaves the state that it has found, or one that an earlier call
has found: from there on everything repeats itself. What no call reads does not count: counters and
logs are observed (:mod:`samba.tracer.observed`) while the model is traced. So a counter that is
only counted costs a second trace and nothing else, and one that decides every k-th call is refused,
however large k is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from pef_schema import first_difference
from pef_schema.errors import SambaError
from pef_schema.printable import some_of
from pef_schema.program import Role
from samba.support.deviations import deviations_of
from samba.support.tracing import tracing_again
from samba.tracer.assigned_state import put_back, some_numbers
from samba.tracer.changed_state import ChangedAttributes, DrawnNumbers, TraceState
from samba.tracer.containers import WHOLE, Change
from samba.tracer.observed import Place, Watch, concrete, roots_of
from samba.tracer.reference import constant_values, without_constant_parts
from samba.tracer.snapshot import Snapshot
from samba.tracer.traced import Traced

_MOST_COMPARED = 3
"""Comparisons of one call that are tried with each outcome: eight traces at most."""

_MOST_CALLS = 6
"""Calls that are traced until one leaves a state that is known: more than a cycle of four takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """What is known of one traced call.

    Args:
        start: The state that it finds.
        unread: The places where it would have left the same, and computed the same, whatever was
            there of that kind.
        leaked: Whether it has put what it found there elsewhere as well.
        moves: Whether it leaves other hooks, parameters or buffers.
    """

    start: Snapshot
    unread: frozenset[Place]
    leaked: bool
    moves: bool


def follow_calls(
    model: torch.nn.Module,
    trace: Callable[[TraceState], Traced],
    traced: Traced,
    state: TraceState,
) -> None:
    """Trace a model in the states that calls of ``forward`` leave, until all that follow are known.

    Args:
        model: The model.
        trace: Traces it in a state.
        traced: The trace of the first call.
        state: What that call has found and left.

    Raises:
        ChangedAttributes: A later call gives another graph, or may give one.
        DrawnNumbers: It does, because of what Python or NumPy draws.
        SambaError: As ``trace``.
    """
    repeated = _Repeated(model, trace, traced)
    with tracing_again():
        repeated.follow(state)
    repeated.tell()
    repeated.forget(state)


class _Repeated:
    """Calls of a model that follow the first one."""

    def __init__(
        self, model: torch.nn.Module, trace: Callable[[TraceState], Traced], traced: Traced
    ) -> None:
        self._model, self._trace = model, trace
        self._graph = without_constant_parts(traced)
        self._calls: list[_Call] = []
        self._changed: dict[str, Change] = {}
        self._read: dict[Place, str] = {}
        self._drew = ""
        self._late: set[str] = set()
        """Paths of what only backward passes change."""
        self._constants: set[int] = set()
        """Identities of tensors that a call has made and left, and that are the same in each."""

    def follow(self, state: TraceState) -> None:
        """Trace calls until all that follow are known.

        Args:
            state: That of the first call.
        """
        assert state.before is not None
        self._note(state, state.before, unread=frozenset())
        moved, exchanged = list(state.moved), list(state.exchanged)
        explored, unread = False, frozenset[Place]()
        for _ in range(1, _MOST_CALLS):
            start = self._real(state)
            changes = state.changes()
            make = partial(
                TraceState,
                self._model,
                moved=tuple(moved),
                exchanged=tuple(exchanged),
                draws=state.draws if state.drew else None,
            )
            state, unread, watch = self._again(start, changes, make)
            self._note(state, start, unread=unread)
            assert state.after is not None
            if self._is_settled(state.after.unobserved()):
                return
            outcomes = () if watch is None or watch.read else watch.outcomes
            if 0 < len(outcomes) <= _MOST_COMPARED and not explored:
                explored = True
                if self._is_free(start, changes, make):
                    return
            moved += state.moved
            exchanged += state.exchanged
        raise self._unsettled(state, unread)

    def tell(self) -> None:
        """Say once what a run on the device leaves out, although it computes what torch does."""
        name, deviations = type(self._model).__name__, deviations_of(self._model)
        # A hook that only watches is named as one.
        hooked = self._late if deviations.has_told("watching-hook") else ()
        changed = [
            path
            for path, change in self._changed.items()
            if not (change.draws or change.caches or change.held or path in hooked)
        ]
        drawing = [path for path, change in self._changed.items() if change.draws]
        if changed:
            deviations.tell(
                "unchanged-attribute",
                f"forward() of {name} changes {some_of(changed)}, which its results do not depend "
                "on: session.run does not change it. Make it a buffer if you read it",
            )
        if self._drew or drawing:
            drew = " and ".join([*([self._drew] if self._drew else []), *drawing])
            deviations.tell(
                "drawn-while-tracing",
                f"forward() of {name} draws from {drew}: the graph depends on the numbers drawn "
                "while it was traced. Draw with torch; the device does that in each run",
            )

    def forget(self, state: TraceState) -> None:
        """Take constants that the first call has made out of what lies outside of the model.

        Args:
            state: That of the first call.
        """
        if self._constants and state.before is not None and state.after is not None:
            state.after.forget(state.before, self._constants)

    # -- one call -------------------------------------------------------------

    def _run(self, state: TraceState) -> Traced:
        """Trace a call with the parameters and buffers that calls before it have left."""
        with put_back(self._model, state.exchanged_before):
            return self._trace(state)

    def _again(
        self,
        start: Snapshot,
        changes: Sequence[Change],
        make: Callable[..., TraceState],
    ) -> tuple[TraceState, frozenset[Place], Watch | None]:
        """Trace a call in a state, in which what the call before has changed is observed."""
        watch = Watch()
        observing, places = start.observing(changes, watch)
        state = make(observing, observes=True)
        try:
            again = self._run(state)
            watch.ended = True
        except SambaError:
            watch.ended = True
            # Perhaps only because torch refuses what stands there for a value.
            watch = None
            state = make(start)
            try:
                again = self._run(state)
            except SambaError as error:
                changed = list(self._changed.values())
                reason = f"Then it cannot be traced: {error}"
                raise ChangedAttributes(self._model, changed, reason) from error
        difference = first_difference(self._graph, without_constant_parts(again))
        if difference is not None:
            self._note_changes(state)
            changed = list(self._changed.values())
            if not changed:
                raise DrawnNumbers(self._model, state.drew, _shown(str(difference)))
            raise ChangedAttributes(self._model, changed, _shown(str(difference)))
        if watch is None:
            return state, frozenset(), None
        self._read |= {**watch.decided, **watch.read}
        read = {*watch.read, *watch.decided}
        return state, _unread(places, read, state.changes(), again), watch

    def _is_free(
        self,
        start: Snapshot,
        changes: Sequence[Change],
        make: Callable[..., TraceState],
    ) -> bool:
        """Whether a call gives the same graph whatever its comparisons of observed values say."""
        open_ones: list[tuple[bool, ...]] = [()]
        while open_ones:
            forced = open_ones.pop()
            watch = Watch(forced=forced)
            observing, places = start.observing(changes, watch)
            state = make(observing, observes=True)
            try:
                again = self._run(state)
            except SambaError:
                return False  # perhaps of a case that never comes
            finally:
                watch.ended = True
            unread = _unread(places, watch.read.keys(), state.changes(), again)
            if (
                watch.read
                or state.moved
                or len(watch.outcomes) > _MOST_COMPARED
                or first_difference(self._graph, without_constant_parts(again)) is not None
                or not all(change.draws or _covers(unread, change) for change in state.changes())
            ):
                return False
            outcomes = tuple(watch.outcomes)
            for place in range(len(forced), len(outcomes)):
                open_ones.append((*outcomes[:place], not outcomes[place]))
        return True

    def _note(self, state: TraceState, start: Snapshot, *, unread: frozenset[Place]) -> None:
        self._note_changes(state)
        self._calls.append(
            _Call(
                start=start,
                unread=unread,
                leaked=any(
                    roots_of(change.new) & unread and not _covers(unread, change)
                    for change in state.changes()
                ),
                moves=bool(state.moved or state.exchanged),
            )
        )

    def _note_changes(self, state: TraceState) -> None:
        self._drew = self._drew or state.drew
        self._late |= state.late
        for change in state.changes():
            self._changed.setdefault(change.path, change)

    def _is_settled(self, end: Snapshot) -> bool:
        """Whether the last call leaves what an earlier one has found, except what none reads."""
        unread: frozenset[Place] | None = None
        for call in reversed(self._calls):
            if call.leaked or call.moves:
                return False
            unread = call.unread if unread is None else unread & call.unread
            if all(change.draws or _covers(unread, change) for change in call.start.changes(end)):
                return True
        return False

    def _unsettled(self, state: TraceState, unread: frozenset[Place]) -> ChangedAttributes:
        open_ones = [c for c in state.changes() if not c.draws and not _covers(unread, c)]
        by_path = {change.path: self._changed[change.path] for change in open_ones}
        lines = {
            change.path: line
            for change in self._changed_places()
            for place in change.places
            if (line := self._read.get(place)) and change.path in by_path
        }
        reads = "".join(f"\n  {path} is read at {line}" for path, line in lines.items())
        return ChangedAttributes(
            self._model,
            list(by_path.values()),
            f"{_MOST_CALLS} calls give the same graph, but each leaves a new state"
            f"{' and reads it:' if reads else ''}{reads or '.'}",
            what="may compute something else after more calls",
        )

    def _changed_places(self) -> Iterable[Change]:
        states = [call.start for call in self._calls]
        return itertools.chain.from_iterable(
            first.changes(second) for first, second in itertools.pairwise(states)
        )

    def _real(self, state: TraceState) -> Snapshot:
        """The state after ``forward``, with tensors that have values.

        A tensor that ``forward`` has made has none while it is traced. One that depends on nothing
        but constants gets its contents; another one some number: if the graph reads it, it is
        another graph.
        """
        assert state.before is not None and state.after is not None
        after, made = state.after.unobserved(), state.made
        real = {id(each): some_numbers(each) for each in state.assigned()}
        if not real:
            return after
        known: dict[int, torch.Tensor] = {}
        try:
            before = state.before.unobserved()
            moved, exchanged = state.moved_before, state.exchanged_before
            whole = self._run(
                TraceState(self._model, before, moved, exchanged, returns_assigned=True)
            )
            values = constant_values(whole)
            results = whole.outputs[len(whole.outputs) - len(made) :]
            for each, output in zip(made, results, strict=True):
                if output.value in values:
                    known[id(each)] = values[output.value]
        except SambaError:
            pass  # then all of them count as computed from data
        self._constants |= known.keys()
        real |= known
        return after.with_tensors(lambda tensor: real.get(id(tensor), tensor))


def _unread(
    places: Mapping[Place, Sequence[torch.Tensor]],
    read: Collection[Place],
    changes: Iterable[Change],
    traced: Traced,
) -> frozenset[Place]:
    """The observed places that no code reads, and that hold the same kind of thing."""
    memory = {
        source.tensor.data_ptr()
        for source in traced.sources
        if source.role is Role.CONSTANT and source.tensor is not None and source.tensor.numel()
    }
    unread = {
        place
        for place, tensors in places.items()
        if place not in read and not any(t.numel() and t.data_ptr() in memory for t in tensors)
    }
    for change in changes:
        if not _of_one_kind(concrete(change.old), concrete(change.new)):
            unread.difference_update(change.places)
    return frozenset(unread)


def _covers(unread: frozenset[Place], change: Change) -> bool:
    """Whether no code reads what has changed; hooks are always read."""
    return bool(change.places) and all(
        place in unread or (place[0], WHOLE) in unread for place in change.places
    )


def _of_one_kind(old: Any, new: Any) -> bool:
    """Whether two values are told apart by nothing that can be asked without being noted."""
    if isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor):
        return old.shape == new.shape and old.dtype == new.dtype
    if type(old) is not type(new):
        return False
    if type(old) is tuple:
        return len(old) == len(new) and all(map(_of_one_kind, old, new))
    return not isinstance(old, (bool, torch.dtype, torch.device)) or old == new


def _shown(difference: str) -> str:
    """A difference between two calls, in the words for two calls."""
    return difference.replace("  compiled: ", "  first call:  ").replace(
        "  traced:   ", "  later call:  "
    )
