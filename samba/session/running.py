"""The run loop: from what a script passes to ``session.run`` to a started plan and back.

A call that asks for what the call before it asked for walks tuples that the earlier one
prepared. Any other call is a transaction: it changes nothing unless all of it succeeds. After any
exception, that of a signal's handler included, a run took place wholly or not at all; which of the
two, ``Device.counters.runs`` tells.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from operator import length_hint
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from emulator.device import Device
from emulator.handler_errors import raise_error_of_handler
from emulator.held_signals import HELD
from emulator.plans.calls import Poller
from emulator.plans.plan import Plan
from emulator.plans.steps import StepKey
from samba.errors import SambaError
from samba.profiler import PROFILER
from samba.sambatensor import SambaTensor
from samba.session.feeding import Feed, Feeder
from samba.session.hyperparams import DropoutSettings, Hyperparameters
from samba.session.outputs import copier, require_written, resolve_outputs, seeds_of
from samba.session.request import (
    NO_CALL,
    Fetches,
    PreparedCall,
    RunRequest,
    SectionRequest,
    plain,
    same_items,
)
from samba.session.section_choice import SectionChooser, absence_of, frozen
from samba.session.start_line import plan_text, tell_start
from samba.session.timeline import Noted, Piece, Pieces
from samba.session.watched_groups import WatchedGroups
from samba.session.watching import (
    Call,
    FirstInputs,
    KeptGradients,
    PendingGradients,
    WatchedAutocast,
    Watcher,
)
from samba.support.deviations import Deviations
from samba.support.given import flag_of
from samba.support.progress import stages
from samba.support.timeline import Spans, Track

if TYPE_CHECKING:
    from samba.distributed.replicas import PreparedRun, Replicas, Wish


class Runner:
    """Runs a device for a session.

    Args:
        device: An open device with its program.
        replicas: The replicas that run the same program.
        feeder: Of the graph's inputs.
        graph: Which graph of the program; None for all of them, in their order.
        known: Regions of inputs that runs of any of its graphs were given.

    Attributes:
        gradients: Those that its runs leave for an update.
        ticks: Loses an element with each run of the device.
        mark: How many it had left when a call began, set by who calls.
        start: What the load has taken its time for; told with the first plan, and empty then.
    """

    def __init__(
        self,
        device: Device,
        replicas: Replicas,
        feeder: Feeder,
        graph: int | None = 0,
        known: set[int] | None = None,
    ) -> None:
        program = device.program
        self._device = device
        self._buffers = device.pool.buffers
        self._checks_branches = device.checks_branches
        self._copied = copier(device)
        self._counters = device.counters
        self._times = device.counters.times
        self.ticks = device.counters.ticks
        self.mark = 0
        self.start: tuple[str, ...] = ()
        self._graph = program.graphs[graph or 0]
        self._feeder = feeder
        feeder.counters = device.counters
        self._chooser = SectionChooser(program, graph)
        self._pieces = Pieces(program)
        self._hyperparameters = Hyperparameters(program)
        self._settings = self._hyperparameters.initial
        self.replicas = replicas
        self._poller = Poller()
        self._deviations = Deviations()
        self._choices: dict[Any, StepKey] = {}
        self._last = NO_CALL
        self._groups = WatchedGroups((), program)
        given = set[int]() if known is None else known
        self._first_inputs = FirstInputs(program, feeder, self._buffers, given)
        self._kept = KeptGradients(program, self._graph, lambda: device.counters.runs)
        self.gradients = PendingGradients(program)
        self._own_watchers = (
            WatchedAutocast(program),
            self._first_inputs,
            self.gradients,
            self._kept,
        )
        self.watch(self._groups)

    def watch(self, groups: WatchedGroups, *others: Watcher) -> None:
        """Ask watchers of what scripts change, beside those of what runs leave on the device.

        Args:
            groups: The parameter groups of optimizers.
            others: Watchers of other things.
        """
        self._groups = groups
        self._watchers: tuple[Watcher, ...] = (groups, *others, *self._own_watchers)
        self._ask_who_looks()

    def _ask_who_looks(self) -> None:
        """Settle which watchers a repeated call asks, as it takes time to ask one."""
        self._changed = tuple([watcher.changed for watcher in self._watchers if watcher.looks])

    def note_gradients(self, regions: Collection[int], *, stays: bool) -> None:
        """Take note that a script has set gradients of outputs.

        Args:
            regions: Their regions; others are left out.
            stays: Whether they are meant for all runs that follow.
        """
        self._kept.note_written(regions, stays=stays)
        self._ask_who_looks()

    def hyperparameters(self) -> dict[str, float]:
        """What holds in the next run, schedulers' changes too, by argin; seeds are of streams."""
        return self._hyperparameters.present(self._device, self._groups.values(), self._settings)

    def set_hyperparameters(self, values: Mapping[str, float]) -> None:
        """Let other values hold, and not those that parameter groups have now.

        Args:
            values: What :meth:`hyperparameters` has given.
        """
        self._settings = self._hyperparameters.put(self._device, values, self._settings)
        self._last = NO_CALL
        self._groups.take()

    def forget_call(self) -> None:
        """Let the next call not be a repetition: updates were made that no call has asked for."""
        self._last = NO_CALL
        self._groups.note_step()

    def note_written(self, regions: Collection[int] | None = None) -> None:
        """Take note that a script has put values into inputs itself.

        Args:
            regions: Their regions; all if None.
        """
        self._first_inputs.take(regions)

    def run(self, request: RunRequest) -> tuple[SambaTensor, ...]:
        """One call of ``session.run``; nothing on the device changes if it raises before it ran.

        Args:
            request: What the script asks for.

        Returns:
            The fetched outputs.
        """
        if self.mark <= self._times.due:
            return self._run_noted(request)
        inputs = request.input_tensors
        feed: Feed = () if inputs is None else self._feeder.arrays(inputs)
        self._start(feed, request)
        return self._fetch()

    def _run_noted(self, request: RunRequest) -> tuple[SambaTensor, ...]:
        """:meth:`run`, timed for the metrics unless it compiles."""
        inputs, compiles = request.input_tensors, self._counters.compiles
        begun = perf_counter()
        feed: Feed = () if inputs is None else self._feeder.arrays(inputs)
        self._start(feed, request)
        started = perf_counter()
        outputs = self._fetch()
        if self._counters.compiles == compiles:
            wait = perf_counter() - started
            self._times.note(self.mark, begun=begun, host=started - begun, wait=wait)
        return outputs

    def run_timed(self, request: RunRequest, *, pinned: bool) -> tuple[SambaTensor, ...]:
        """:meth:`run` in events of the profiler, waiting for the device.

        Args:
            request: What the script asks for.
            pinned: Whether inputs count as pinned.

        Returns:
            The fetched outputs.
        """
        types, *_ = request.sections
        types = types if isinstance(types, (list, tuple)) else [types]
        event = PROFILER.event
        with event("_".join(["SAMBA_SESSION_RUN", *(str(t).upper() for t in types if t)])):
            feed: Feed = ()
            if request.input_tensors is not None:
                name = "PyRT_SET_PINNED_INPUT_TENSORS" if pinned else "PyRT_SET_TENSORS"
                with event(name):
                    feed = self._feeder.arrays(request.input_tensors)
            with event("PyRT_RUN"):
                self._start(feed, request)
                self._device.synchronize()
            if not self._last.fetches:
                return ()
            with self.replicas.getting_tensors():
                return self._fetch()

    def run_on_timeline(self, request: RunRequest, timeline: Spans) -> tuple[SambaTensor, ...]:
        """:meth:`run` section by section, each waited for and noted.

        Args:
            request: What the script asks for; with other replicas it is run as a whole.
            timeline: Where it is noted.
        """
        steps = self.steps_of(request)
        with timeline.span(Track.HOST, "session.run"):
            if request.wish is not None or not steps:
                with timeline.span(Track.SECTIONS, "all sections"):
                    return self.run_timed(request, pinned=False)
            with timeline.span(Track.HOST, "feed"):
                inputs = request.input_tensors
                feed: Feed = () if inputs is None else self._feeder.arrays(inputs)
            fetches = resolve_outputs(self._device, request.output_tensors)
            for piece in self._pieces.of(steps):
                part = piece.request(request)
                self._change(feed, part, fetches=(), steps=piece.steps, noted=(timeline, piece))
                feed = ()
            require_written(self._device, fetches, None, self._deviations)
            nbytes = sum(self._device.program.regions[region].nbytes for region, _ in fetches)
            self._last = replace(NO_CALL, fetches=fetches, fetched_bytes=nbytes)
            with timeline.span(Track.HOST, "fetch"):
                return self._fetch()

    def _took_place(self) -> bool:
        """Whether the run that this call asked for has taken place."""
        return length_hint(self.ticks) != self.mark

    def explain(self, error: BaseException) -> None:
        """Say of an error whether the run took place, or that memory is lost with it.

        Args:
            error: What ended the run since ``mark`` was set.

        Raises:
            LostMemory: If an executable has failed, and memory with it.
        """
        if isinstance(error, RuntimeError) and not isinstance(error, SambaError):
            self._device.raise_if_lost(error)
        if self._took_place():
            error.add_note(
                "session.run: this run took place before the interruption, and "
                "session.counters.runs counts it: device memory holds its results."
            )

    def shapes(self, inputs: Any) -> dict[str, torch.Size]:
        """Shapes of inputs by the names that they would be fed under, fitting or not."""
        return self._feeder.shapes(inputs)

    def _start(self, feed: Feed, request: RunRequest) -> None:
        """Put inputs on the device and start the plan, prepared or new."""
        if self._checks_branches:
            self._device.check_branches()
        last = self._last
        _, outputs, hyperparams, sections, grads, train, wish = request
        same_outputs = outputs is last.output_tensors or same_items(outputs, last.listed)
        try:
            same_sections = sections == last.sections
        except Exception as error:
            raise_error_of_handler(error)
            # A tensor of several numbers among them, or lists nested without end.
            same_sections = False  # refused below
        if (
            same_outputs
            and same_sections
            and wish is last.wish
            and train is last.train
            and grads is None
            and self._device.variant is last.variant
        ):
            for changed in self._changed:
                if changed():
                    break
            else:
                try:
                    repeats = hyperparams == last.hyperparams
                except Exception:  # a tensor or array of several numbers, or what compares to none
                    repeats = False  # refused below
                if repeats:
                    self._repeat(feed, last.plan)
                    return
        self._change(
            feed,
            request,
            fetches=last.fetches if same_outputs else resolve_outputs(self._device, outputs),
            steps=last.steps if same_sections else self.steps_of(request),
        )

    def _fetch(self) -> tuple[SambaTensor, ...]:
        """Copies of the outputs asked for; waits until they are computed."""
        buffers, last, fetched = self._buffers, self._last, []
        for region, name in last.fetches:
            buffer: Any = buffers[region]
            if buffer is None:
                buffer = self._device.read_uncounted(region)
            elif type(buffer) is not np.ndarray:
                self._poller.wait_briefly(buffer)
            tensor = self._copied(buffer).as_subclass(SambaTensor)
            tensor._sn_name = name
            fetched.append(tensor)
        self._counters.from_device += last.fetched_bytes
        if self._checks_branches and fetched:
            self._device.check_branches(wait=True)  # of the run that has made them
        return tuple(fetched)

    def _repeat(self, feed: Feed, plan: Plan | PreparedRun | None) -> None:
        buffers = self._buffers
        before = buffers.copy()  # cheaper than picking out those that the feed replaces
        try:
            for region, array in feed:
                buffers[region] = array
            if type(plan) is Plan:
                self._device.run(plan)
            elif plan is not None:
                plan.run()  # pyright: ignore[reportAttributeAccessIssue]  # a Plan has gone the other way
        except BaseException:
            if not self._took_place():
                for region, _ in feed:
                    buffers[region] = before[region]
            raise

    def _change(
        self,
        feed: Feed,
        request: RunRequest,
        *,
        fetches: Fetches,
        steps: StepKey,
        noted: Noted | None = None,
    ) -> None:
        """Run a call that asks for something else than the last; on success it is the last."""
        device, buffers, last = self._device, self._buffers, self._last
        self._counters.prepared += 1
        grads, outputs, wish = request.grad_of_outputs, request.output_tensors, request.wish
        train = flag_of(request.train, "session.run(train=...)")
        call = Call(inputs=request.input_tensors, feed=feed, steps=steps, train=train)
        for watcher in self._watchers:
            watcher.before(call)
        seeds = (
            ()
            if grads is None
            else seeds_of(self._graph.outputs, grads, device.program, self._deviations)
        )
        argins, settings = self._hyperparameters.resolve(request.hyperparams, self._settings, train)
        for index, (where, value) in self._groups.values().items():
            if index not in argins:
                argins[index] = self._hyperparameters.number(where, value, index)
        self._last = NO_CALL  # what follows is not a repetition, should this end early
        with device.unchanged_on_error() as transaction:
            for index, value in argins.items():
                if index in self._hyperparameters.seeds or device.argin(index) != value:
                    device.set_argin(index, value)
            for region, array, name in seeds:
                device.write(region, array, name=name)
            if seeds:
                self.note_gradients([region for region, _, _ in seeds], stays=False)
            for region, array in feed:
                buffers[region] = array
            plan = last.plan
            if (
                steps is not last.steps
                or device.variant is not last.variant
                or wish is not last.wish
            ):
                plan = self._planned(steps, wish, noted)
            if plan is not last.plan or fetches is not last.fetches:
                require_written(device, fetches, plan, self._deviations)
            fixed = outputs is None or isinstance(outputs, (tuple, torch.Tensor, str))
            # A seed restarts the random stream whenever it is given.
            restarts = not self._hyperparameters.seeds.isdisjoint(argins)
            repeatable = None if restarts else {k: plain(v) for k, v in request.hyperparams.items()}
            prepared = PreparedCall(
                output_tensors=outputs if fixed else NO_CALL.output_tensors,
                listed=outputs[:] if isinstance(outputs, (list, tuple)) else None,
                hyperparams=repeatable,
                sections=frozen(request.sections),
                train=train,
                wish=wish,
                variant=device.variant,
                steps=steps,
                plan=plan,
                fetches=fetches,
                fetched_bytes=sum(device.program.regions[region].nbytes for region, _ in fetches),
            )
            with HELD:  # a run that took place is also known to have
                if plan is not None:
                    self._go(plan, noted)
                transaction.commit()
                self._note(prepared, settings)

    def _note(self, prepared: PreparedCall, settings: DropoutSettings) -> None:
        """A call was made: it is what the next one may repeat. Warnings come last."""
        self._last, self._settings = prepared, settings
        for watcher in self._watchers:
            watcher.after(prepared.steps)
        for watcher in self._watchers:
            watcher.warn()
        self._ask_who_looks()

    def _planned(
        self, steps: StepKey, wish: Wish | None, noted: Noted | None
    ) -> Plan | PreparedRun | None:
        """The plan of some steps; with other replicas where they have to reduce."""
        if wish is not None:
            prepared = self.replicas.prepare(steps, wish)
            if prepared is not None:
                return prepared
        else:
            self.replicas.tell_if_unreduced(steps)
        if noted is None:
            return self._plan_for(steps)
        if not steps or self._device.is_compiled(steps, whole=True):
            return self._plan_for(steps, whole=True)
        timeline, piece = noted
        with timeline.span(Track.HOST, "compile", piece.facts):
            return self._plan_for(steps, whole=True)

    def _go(self, plan: Plan | PreparedRun, noted: Noted | None = None) -> None:
        if noted is not None:
            self._go_noted(*noted, plan)
        elif type(plan) is Plan:
            self._device.run(plan)
        else:
            plan.run()  # pyright: ignore[reportAttributeAccessIssue]  # a Plan has gone the other way

    def _go_noted(self, timeline: Spans, piece: Piece, plan: Plan | PreparedRun) -> None:
        """Run a piece and wait for it: the time is that of its executable, and of its start."""
        with timeline.span(Track.SECTIONS, piece.name, piece.facts):
            with timeline.span(Track.HOST, "dispatch"):
                self._go(plan)
            if type(plan) is Plan:
                self._device.wait_for(plan)
        if type(plan) is Plan:
            timeline.executed(piece.name, plan.executables[0], self._device.program)

    def _plan_for(self, steps: StepKey, *, whole: bool = False) -> Plan | None:
        if not steps:
            return None
        if self._device.is_compiled(steps, whole=whole):
            return self._device.plan(steps, whole=whole)
        what = f"compiling {len(steps)} section steps"
        with stages(self._device.program.name, what) as stage:
            stage.start(what)
            plan = self._device.plan(steps, whole=whole)
        if self.start:
            tell_start(self._device.program.name, *self.start, plan_text(plan.making))
            self.start = ()
        return plan

    # -- what a call asks for -----------------------------------------------

    def steps_of(self, request: RunRequest) -> StepKey:
        """The steps that a call runs, in order.

        Args:
            request: The call.
        """
        key = self._chooser.settled(SectionRequest(*request.sections))
        steps = self._choices.get(key)
        if steps is None:
            choice = self._chooser.choose(key)
            for kind in choice.absent:
                self._deviations.tell("absent-section", absence_of(kind))
            if len(self._choices) >= self._device.most_plans:
                self._choices.clear()
            steps = self._choices[key] = choice.steps
        return steps
