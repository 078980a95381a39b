"""Watchers: what a script may change beside a call of ``session.run``, and what a run leaves.

A call that asks for what the last one asked for repeats it. So it has to know whether anything else
has changed since: the modes of modules, the parameter groups of optimizers, host tensors, gradients
that are set. Each of these is a :class:`Watcher`, and the runner asks all of them in the same way:

* ``changed()`` before each call that looks like a repetition: then the call is prepared again;
* ``before(call)`` when a call was prepared again and is about to run;
* ``after(steps)`` when it has run, and ``warn()`` when that is taken down.

The watchers of parameter groups and of host tensors have files of their own: ``watched_groups.py``
and ``host_writes.py``.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from emulator.plans.steps import StepKey
from pef_schema.module_paths import plain_path
from pef_schema.printable import some_of
from pef_schema.program import Graph, Program, Ref, SectionKind
from samba.session.feeding import Feed, Feeder
from samba.session.index_checks import written_regions
from samba.support.autocast import AUTOCAST, autocast_in_force
from samba.support.deviations import Deviations, tell


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call of ``session.run`` that was prepared and is about to run.

    Args:
        inputs: The inputs, as the script passed them.
        feed: The arrays that were made of them.
        steps: The steps to run.
        train: Whether dropout rates are honoured.
    """

    inputs: Any
    feed: Feed
    steps: StepKey
    train: bool


class Watcher:
    """Something beside the arguments of a call on which its run depends.

    A watcher does nothing of its own accord; each overrides what it needs.
    """

    @property
    def looks(self) -> bool:
        """Whether :meth:`changed` may be True at the next call: only then is it asked."""
        return False

    def changed(self) -> bool:
        """Whether a call has to be prepared again even if it asks for what the last one did."""
        return False

    def before(self, call: Call) -> None:
        """Bring what a script has changed to the device, and warn of what does not count there.

        Args:
            call: What is about to run.
        """

    def after(self, steps: StepKey) -> None:
        """Take note of a run that has taken place. This raises nothing.

        Args:
            steps: The steps that it ran.
        """

    def warn(self) -> None:
        """Warn of what the last run did; the run itself is taken down by now."""


class WatchedModes(Watcher):
    """Whether modules are in the mode in which a loaded program has them.

    ``model.eval()`` and ``model.train()`` change nothing of a program. Who calls them before a
    run is warned, once, if a module that looks at its mode is concerned.

    Args:
        model: The model that was loaded; None where there are several.
        program: The program.
    """

    def __init__(self, model: nn.Module | None, program: Program) -> None:
        modules = () if model is None else model.named_modules()
        sensitive = [
            (path or type(m).__name__, m)
            for path, m in modules
            if "training" in vars(m) and _looks_at_mode(type(m))
        ]
        self._names = [path for path, _ in sensitive]
        self._is_dropout = [isinstance(m, nn.modules.dropout._DropoutNd) for _, m in sensitive]
        self._flags: list[dict[str, Any]] = [vars(m) for _, m in sensitive]
        self._loaded = self._seen = self._modes()
        self._inference = program.inference
        self._batch_norms = _batch_norms(program.graphs[0])
        self._deviations = Deviations()

    def _modes(self) -> list[bool]:
        return [flags["training"] for flags in self._flags]

    @property
    def looks(self) -> bool:
        """Whether there are modules that look at their mode."""
        return bool(self._flags)

    def changed(self) -> bool:
        """Whether a module is in another mode than when it was looked at last."""
        return self._seen != [flags["training"] for flags in self._flags]

    def before(self, call: Call) -> None:
        """Warn where a run does something else than the modes or ``train=False`` say."""
        self._seen = self._modes()
        for training, word in ((False, "eval"), (True, "train")):
            names = [
                name
                for name, is_dropout, loaded, now in zip(
                    self._names, self._is_dropout, self._loaded, self._seen, strict=True
                )
                if now is training
                and now is not loaded
                and not (is_dropout and not call.train and not training)
                and not (self._inference and not training)
            ]
            if names:
                self._deviations.tell(
                    "mode-after-trace",
                    f"{word}() was called after trace_graph, on {some_of(names)}: session.run "
                    "stays in the mode that was compiled. samba.session.evaluator(model, inputs) "
                    "evaluates during training",
                )
        if not call.train and self._batch_norms:
            self._deviations.tell(
                "batch-statistics",
                f"run(train=False): batch norm at {some_of(self._batch_norms)} still uses and "
                "updates statistics of the batch, because train=False only affects dropout. "
                "samba.session.evaluator(model, inputs) evaluates with running statistics",
            )


_SENSITIVE = (
    nn.modules.batchnorm._NormBase,
    nn.modules.dropout._DropoutNd,
    nn.RNNBase,
    nn.MultiheadAttention,
)
"""Modules of torch's own that compute something else in training."""


def _looks_at_mode(kind: type) -> bool:
    """Whether code of a module's class asks for ``self.training``."""
    if issubclass(kind, _SENSITIVE):
        return True
    return not kind.__module__.startswith("torch.nn.") and any(
        "training" in _names_of(value.__code__)
        for base in kind.__mro__
        if base is not nn.Module and not base.__module__.startswith("torch.")
        for value in vars(base).values()
        if isinstance(value, types.FunctionType)
    )


def _names_of(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_of(constant)


def _batch_norms(graph: Graph) -> list[str]:
    """Lines, else modules, of norms that would use running statistics in evaluation mode."""
    norms = [
        node.source or plain_path(node.module)
        for node in graph.nodes
        if ("batch_norm" in node.op or "instance_norm" in node.op)
        and len(node.args) > 5
        and isinstance(node.args[3], Ref)
        and node.args[5] is True
    ]
    return list(dict.fromkeys(norms))


class WatchedAutocast(Watcher):
    """Whether ``torch.autocast`` is in force at a run, where it changes nothing.

    Args:
        program: The loaded program.
    """

    def __init__(self, program: Program) -> None:
        self._compiled = dict(program.metadata).get(AUTOCAST, "")
        self._deviations = Deviations()

    def before(self, call: Call) -> None:
        """Warn, once, of an autocast that the program was not compiled with."""
        del call
        if (dtype := autocast_in_force()) and dtype != self._compiled:
            self._deviations.tell(
                "autocast-at-run",
                f"session.run is called with torch.autocast in {dtype}, which has no effect: "
                "it acts while a model is traced. Put it into forward(), or around both "
                "session.compile and trace_graph",
            )


class FirstInputs(Watcher):
    """Inputs that no run has been given yet: the device has those of the trace in their place.

    Each is watched until a run is given it, or runs without it.

    Args:
        program: The loaded program.
        feeder: Of a graph's inputs.
        buffers: Device memory by region.
        known: Regions of which nothing needs to be told any more, of all graphs of the program.
    """

    def __init__(
        self, program: Program, feeder: Feeder, buffers: Sequence[Any], known: set[int]
    ) -> None:
        self._program, self._feeder, self._buffers = program, feeder, buffers
        self._known = known
        written = written_regions(program)
        self._missing = {slot.region: slot for slot in feeder.slots if slot.region not in written}
        self._done: set[int] = set()
        """Regions that need no watch any more once the present run has taken place."""

    def take(self, regions: Iterable[int] | None = None) -> None:
        """Take note that inputs were given.

        Args:
            regions: Their regions; all if None.
        """
        taken = tuple(self._missing if regions is None else regions)
        self._known.update(taken)
        for region in taken:
            self._missing.pop(region, None)

    def before(self, call: Call) -> None:
        """Name the inputs that a run takes from the trace, except those for which it is given None.

        Raises:
            IndexOutOfRange: If such an input is used as indices and one is out of range.
        """
        if not (self._missing and call.steps):
            return
        fed = {region for region, _ in call.feed}
        sections = self._program.sections
        reads = {region for s, k in call.steps for region in sections[s].steps[k].reads} - fed
        used = [slot for slot in self._missing.values() if slot.region in reads]
        for slot in used:
            if self._buffers[slot.region] is not None:
                for check in slot.checks:
                    check.check(np.asarray(self._buffers[slot.region]))
        known = self._feeder.left_out(call.inputs) | self._known if used else ()
        names = [slot.name for slot in used if slot.region not in known]
        if names:
            tell(
                "input-of-trace",
                f"session.run() was given no {', '.join(names)}, so it uses the values given to "
                "trace_graph. Pass it, or None if those are meant",
            )
        self._done = fed.union([slot.region for slot in used])

    def after(self, steps: StepKey) -> None:
        """Inputs that were given or used count as known."""
        del steps
        self.take(self._done)


class PendingGradients(Watcher):
    """Gradients that wait for an update: a second backward pass replaces them; torch would add.

    Args:
        program: The loaded program.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._trained: frozenset[int] = frozenset(
            region
            for section in program.sections
            for step in section.steps
            if step.kind is SectionKind.OPT
            for region in step.reads
        )
        self._waiting: frozenset[int] = frozenset()
        self._replaced: frozenset[int] = frozenset()
        self._repeats = self._has_warned = False

    @property
    def waits(self) -> bool:
        """Whether an update has yet to use gradients of a backward pass."""
        return bool(self._waiting)

    @property
    def looks(self) -> bool:
        """Whether a repetition of the last call would replace gradients."""
        return self._repeats

    def changed(self) -> bool:
        """As :attr:`looks`: such a repetition is warned of."""
        return self._repeats

    def after(self, steps: StepKey) -> None:
        """Take note of the gradients that a run has replaced, used or left to be used."""
        self._waiting, replaced = self._run(steps)
        if not self._has_warned:
            self._replaced |= replaced
            self._repeats = not self._replaced and bool(self._run(steps)[1])

    def _run(self, steps: StepKey) -> tuple[frozenset[int], frozenset[int]]:
        """The gradients that wait after some steps, and those that these replace."""
        waiting, replaced = self._waiting, frozenset[int]()
        for section, number in steps:
            step = self._program.sections[section].steps[number]
            if step.kind is SectionKind.BCKWD:
                written = self._trained.intersection(step.writes)
                replaced |= written.difference(step.accumulates) & waiting
                waiting |= written
            elif step.kind is SectionKind.OPT:
                waiting = waiting.difference(step.reads)
            elif step.kind is SectionKind.ZEROGRAD:
                waiting = waiting.difference(step.writes)
        return waiting, replaced

    def warn(self) -> None:
        """Warn, once, of gradients that a run has replaced and no update has used."""
        if self._has_warned or not self._replaced:
            return
        self._has_warned = True
        first = self._program.regions[min(self._replaced)].name
        tell(
            "replaced-gradients",
            f"BCKWD replaces {len(self._replaced)} gradients that no OPT has used ({first} and "
            "others): torch would add to them. session.compile(is_split_batch=True) makes a PEF "
            "whose gradients add up until ZEROGRAD",
        )


_Use = tuple[int, int, int]
"""A region that a step reads: the region, the section and the number of the step in it."""


class KeptGradients(Watcher):
    """Which backward pass starts from a gradient that was meant for an earlier one.

    Torch's ``backward(gradient)`` holds for that call; ``output.sn_grad = ...`` and
    ``run(grad_of_outputs=...)`` write device memory, where it stays. Nothing is asked of a run as
    long as no script has set such a gradient.

    Args:
        program: The loaded program.
        graph: The graph whose outputs are meant.
        runs: Gives the number of runs that have taken place.
    """

    def __init__(self, program: Program, graph: Graph, runs: Callable[[], int]) -> None:
        self._program, self._runs = program, runs
        self._names = {o.grad_region: o.name for o in graph.outputs if o.grad_region >= 0}
        self._written: dict[int, int] = {}
        """Regions that were set, with the number of runs before."""
        self._used: set[_Use] = set()
        """How backward passes have started from them since."""
        self._repeated: frozenset[_Use] = frozenset()
        """How a repetition of the last call would."""
        self._old: tuple[str, ...] = ()
        self._has_warned = False

    @property
    def looks(self) -> bool:
        """Whether a script has set gradients that are meant for one run."""
        return bool(self._written)

    def note_written(self, regions: Collection[int], *, stays: bool = False) -> None:
        """Take note that gradients of outputs were set.

        Args:
            regions: Their regions; others are left out.
            stays: Whether they are meant for all runs that follow, as those of
                ``utils.init_output_grads`` are.
        """
        for region in self._names.keys() & set(regions):
            self._used = {use for use in self._used if use[0] != region}
            self._written.pop(region, None)
            if not stays and not self._has_warned:
                self._written[region] = self._runs()

    def changed(self) -> bool:
        """Whether a repetition of the last call would start from an old gradient."""
        runs = self._runs()
        return any(self._written.get(region, runs) < runs for region, _, _ in self._repeated)

    def after(self, steps: StepKey) -> None:
        """Take note of the gradients from which a run has started.

        A section that uses a gradient a second time is in another backward pass; two sections may
        be of the same one."""
        if not self._written:
            self._repeated = frozenset()
            return
        sections, before = self._program.sections, self._runs() - 1
        using = frozenset(
            (region, section, number)
            for section, number in steps
            if sections[section].steps[number].kind is SectionKind.BCKWD
            for region in self._written.keys() & set(sections[section].steps[number].reads)
        )
        old = {
            use[0]
            for use in using
            if use in self._used or (use in self._repeated and self._written[use[0]] < before)
        }
        self._old = tuple(self._names[region] for region in sorted(old))
        self._used |= using
        self._repeated = using

    def warn(self) -> None:
        """Warn, once, that a run has started from gradients of an earlier one."""
        if self._has_warned or not self._old:
            return
        self._has_warned = True
        self._written.clear()
        tell(
            "kept-gradient",
            f"BCKWD starts from the gradient of {some_of(self._old)} that was set for an earlier "
            "run (sn_grad or grad_of_outputs): device memory keeps it, where torch's backward() "
            "would take a new one. Set it for each run, or once for all with "
            "utils.init_output_grads",
        )
