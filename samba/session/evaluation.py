"""Evaluation beside training: a model in evaluation mode over the memory that trains it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from operator import length_hint
from typing import Any, NoReturn

import torch

from emulator.device import Device
from emulator.held_signals import HELD
from emulator.start import refuse_in_child
from pef_schema.program import Program, Role
from pef_schema.verify import verify
from samba.compiler.arithmetic import compiled_arithmetic
from samba.compiler.build import build_program
from samba.compiler.rounding import apply_arithmetic
from samba.compiler.sections import CompileOptions
from samba.distributed.replicas import Replicas
from samba.errors import ArgumentError, NotCopyable, NotLoaded
from samba.profiler import PROFILER
from samba.sambatensor import SambaTensor
from samba.session.host_tensors import with_values
from samba.session.index_checks import find_index_checks
from samba.session.known_buffers import KnownBuffers, refuse_changed_elsewhere
from samba.session.layout_feeding import feeder_of, with_layouts_and_views
from samba.session.loading import LoadedModel
from samba.session.outputs import output_handles
from samba.session.program_slot import ProgramSlot
from samba.session.request import RunRequest
from samba.session.running import Runner
from samba.support.progress import stages
from samba.support.tracing import refuse_while_tracing
from samba.tensor.views import read_as_numpy
from samba.tracer.capture import trace_model
from samba.tracer.errors import TraceError
from samba.tracer.inputs import TraceInputs, collect_inputs
from samba.tracer.torch_internals import tree_flatten, tree_unflatten
from samba.tracer.traced import Traced
from samba.tracer.user_code import calling_line

_SHARED = frozenset({Role.WEIGHT, Role.BUFFER})
"""Roles of regions that a program for evaluation takes from the loaded one."""

_WHOLE = ((), (), None, None)
"""The whole schedule, as a request names it."""

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """The program for inputs of certain shapes, on a device of its own.

    Args:
        device: Its device.
        runner: What runs it.
        outputs: Handles of its outputs.
        shared: Pairs of its region and the region of the loaded program that it is.
        changed: Those pairs of which it writes the region.
        own: Tensors of the model that the loaded program does not have, by region.
        known: Buffers whose values are part of its graph.
    """

    device: Device
    runner: Runner
    outputs: tuple[SambaTensor, ...]
    shared: tuple[tuple[int, int], ...]
    changed: tuple[tuple[int, int], ...]
    own: tuple[tuple[int, str], ...]
    known: KnownBuffers


_numbers = itertools.count()

MOST_FORMS = 32
"""Forms of inputs whose programs are kept; a script may come with ever new batch sizes."""


class Evaluator:
    """A loaded model in evaluation mode, as ``model.eval()`` under ``torch.no_grad()`` has it.

    ``samba.session.evaluator`` makes it. It has no weights of its own: each run takes the present
    weights and running statistics of the loaded program, where they lie in device memory, and
    nothing of that program's changes: not its optimizers, not its gradients, not its random stream.

    Args:
        slot: The session's program.
        model: The model that was given to ``trace_graph``.
        inputs: Inputs of the shapes to evaluate with, as for ``trace_graph``; None for the shapes
            that it was given.
    """

    def __init__(self, slot: ProgramSlot, model: torch.nn.Module, inputs: Any = None) -> None:
        loaded = slot.need("evaluator()")
        refuse_in_child("session.evaluator()")
        if not isinstance(loaded, LoadedModel):
            raise ArgumentError(
                where="session.evaluator(...)",
                found="a program of several graphs",
                wanted="one that trace_graph has loaded",
                hint="Graphs of a PEF for several graphs are traced for inference already.",
            )
        if model is not loaded.model:
            raise ArgumentError(
                where="session.evaluator(model)",
                found=f"another {type(model).__name__} than the one on the device",
                wanted="the model that was given to trace_graph",
                hint="An evaluator has no weights of its own.",
            )
        self._slot, self._loaded = slot, loaded
        self._given = loaded.given if inputs is None else collect_inputs(model, inputs)
        self._parts: dict[Shapes, _Part] = {}
        self._adding = threading.RLock()
        self._part = self._part_for(self._given)
        loaded.evaluators[next(_numbers)] = self

    def __reduce_ex__(self, protocol: object, /) -> NoReturn:
        """What is on the device stays there: neither ``copy`` nor ``pickle`` take it along."""
        raise NotCopyable(what="session's evaluator")

    @property
    def devices(self) -> tuple[Device, ...]:
        """A device for each form of inputs, the oldest first."""
        return tuple([part.device for part in list(self._parts.values())])

    @property
    def output_tensors(self) -> tuple[SambaTensor, ...]:
        """Handles of the outputs, in the order of ``forward``, with the shapes of the last run."""
        return self._part.outputs

    def run(self, input_tensors: Any, output_tensors: Any = None) -> tuple[SambaTensor, ...]:
        """Evaluate a batch with the present weights and running statistics.

        A batch of other shapes than before, such as a last smaller one, is traced and compiled
        when it comes for the first time.

        Args:
            input_tensors: Inputs, matched by name or position as ``session.run`` matches them.
            output_tensors: Outputs to fetch: handles or names, those that ``trace_graph``
                returned included; None for all of them.

        Returns:
            The outputs.

        Raises:
            NotLoaded: If the session has loaded something else since, or nothing.
            SambaError: If inputs do not fit the model.
        """
        loaded = self._loaded
        if self._slot.loaded is not loaded:
            raise NotLoaded(operation="evaluator(...).run()")
        refuse_in_child("evaluator(...).run()")
        refuse_while_tracing("evaluator(...).run()")
        # A new part is traced, for which other threads may be waited; nobody waits for this one.
        part = self._part = self._part_for(self._reshaped(input_tensors))
        return loaded.turns.run(
            "evaluator(...).run()", lambda: self._evaluate(part, input_tensors, output_tensors)
        )

    def _evaluate(
        self, part: _Part, input_tensors: Any, output_tensors: Any
    ) -> tuple[SambaTensor, ...]:
        """Evaluate a batch in a turn on the loaded program."""
        # What the program changes it takes from the loaded one, and gives back after the run.
        with HELD if part.changed else nullcontext():
            loaded = self._loaded
            loaded.writes.bring()
            if part.known:
                part.known.refuse_changed("evaluator(...).run()")
            here, there = part.device.pool.buffers, loaded.device.pool.buffers
            try:
                for mine, region in part.shared:
                    here[mine] = there[region]
                self._bring(part)
                outputs = self._outputs_of(part, output_tensors)
                part.runner.mark = length_hint(part.runner.ticks)
                results = part.runner.run(RunRequest(input_tensors, outputs, {}, _WHOLE))
                if PROFILER.follower is not None:
                    PROFILER.follower.evaluated(
                        loaded.program,
                        part.device,
                        {name: like.sn_name for name, like in self._like(part).items()},
                    )
                return results
            except BaseException as error:
                part.runner.explain(error)
                raise
            finally:
                for mine, region in part.changed:
                    if here[mine] is not None:
                        there[region] = here[mine]
                for mine, _ in part.shared:
                    here[mine] = None  # or old weights would outlive the next step

    def _bring(self, part: _Part) -> None:
        """Values that the loaded program does not hold: from the host, where it has none."""
        self._loaded.device.require([region for _, region in part.shared])
        if part.own:
            model = self._loaded.model
            tensors: Mapping[str, torch.Tensor] = {
                **dict(model.named_parameters(remove_duplicate=False)),
                **dict(model.named_buffers(remove_duplicate=False)),
            }
            for region, path in part.own:
                values = read_as_numpy(with_values(tensors[path]), path)
                part.device.write(region, values, name=path)

    def _outputs_of(self, part: _Part, outputs: Any) -> Any:
        """Outputs to fetch, with handles of the loaded program replaced by their like here."""
        if outputs is None:
            return part.outputs
        if isinstance(outputs, (str, torch.Tensor)):
            outputs = (outputs,)
        like = self._like(part)
        names = [o if isinstance(o, str) else getattr(o, "sn_name", "") for o in outputs]
        own = {o.sn_name for o in part.outputs}
        return tuple(
            [
                o if name in own else like.get(name, o)
                for name, o in zip(names, outputs, strict=True)
            ]
        )

    def _like(self, part: _Part) -> dict[str, SambaTensor]:
        """Handles of a program's outputs by the names that they have in the loaded one."""
        if len(part.outputs) != len(self._loaded.outputs):
            return {}
        return dict(zip([o.sn_name for o in self._loaded.outputs], part.outputs, strict=True))

    # -- programs, one for each form of the inputs -----------------------------------

    def _reshaped(self, inputs: Any) -> TraceInputs:
        """The arguments of ``forward`` with the shapes of a batch; of what it lacks, the last."""
        given = self._given  # read once: another thread may come with a batch of other shapes
        shapes = self._part.runner.shapes(inputs)
        if all(shapes.get(t.name, t.tensor.shape) == t.tensor.shape for t in given.tensors):
            return given
        leaves, spec = tree_flatten((given.args, given.kwargs))
        tensors = iter(given.tensors)
        named = []
        for place, leaf in enumerate(leaves):
            if not isinstance(leaf, torch.Tensor):
                continue
            entry = next(tensors)
            shape = shapes.get(entry.name, leaf.shape)
            leaves[place] = leaf.new_empty(shape, requires_grad=leaf.requires_grad)
            named.append(replace(entry, tensor=leaves[place]))
        args, kwargs = tree_unflatten(leaves, spec)
        reshaped = replace(given, args=args, kwargs=kwargs, tensors=tuple(named))
        self._given = reshaped
        return reshaped

    def _part_for(self, given: TraceInputs) -> _Part:
        key = tuple([tuple(entry.tensor.shape) for entry in given.tensors])
        with self._adding:  # two threads may come with a batch of one new form
            part = self._parts.get(key)
            if part is None:
                part = self._new_part(given)
                while len(self._parts) >= MOST_FORMS:
                    self._parts.pop(next(iter(self._parts)))
                self._parts[key] = part
            return part

    def _new_part(self, given: TraceInputs) -> _Part:
        loaded = self._loaded
        compiled = loaded.program
        with stages(f"evaluate {compiled.name}", "tracing") as stage, self._slot.tracing():
            stage.start("tracing")
            root = compiled.graphs[0].name
            try:
                traced = trace_model(loaded.model, given, inference=True, root=root)
            except TraceError as error:
                shapes = ", ".join(f"{t.name} {tuple(t.tensor.shape)}" for t in given.tensors)
                error.add_note(f"{calling_line()}: the evaluator traces the model for {shapes}.")
                raise
        refuse_changed_elsewhere(traced, [loaded.traced])
        traced = apply_arithmetic(traced, compiled_arithmetic(dict(compiled.metadata)))
        options = CompileOptions(
            name=compiled.name,
            inference=True,
            mapping=compiled.mapping,
            metadata=compiled.metadata,
        )
        program = build_program(traced, (), options)
        verify(program)
        device = Device(program, chips=loaded.device.placement.chips)
        self._slot.book.add(device)
        feeder = feeder_of(
            program,
            with_layouts_and_views(given, traced, loaded.model, inference=True).tensors,
            constants=given.constants,
            checks=find_index_checks(program, 0).fed,
        )
        shared, own = _places(traced, program, compiled)
        written = {update.region for update in program.graphs[0].updates}
        return _Part(
            device=device,
            runner=Runner(device, Replicas(device), feeder),
            outputs=output_handles(program.graphs[0]),
            shared=shared,
            changed=tuple([pair for pair in shared if pair[0] in written]),
            own=own,
            known=KnownBuffers([(loaded.model, traced)]),
        )


def _places(
    traced: Traced, program: Program, loaded: Program
) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, str], ...]]:
    """Regions that two programs share, by name, and paths of tensors that only one has."""
    there = {r.name: n for n, r in enumerate(loaded.regions) if r.role in _SHARED}
    paths = {s.region_name: s.path for s in traced.sources if s.role in _SHARED}
    # A check of a branch is not a tensor of the model: each program has its own.
    checks = {s.region_name for s in traced.sources if s.role is Role.METRIC}
    named = [(n, r.name) for n, r in enumerate(program.regions) if r.role in _SHARED]
    mine = [(n, name) for n, name in named if name not in checks]
    shared = [(n, there[name]) for n, name in mine if name in there]
    own = [(n, paths[name]) for n, name in mine if name not in there]
    return tuple(shared), tuple(own)
