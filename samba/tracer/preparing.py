"""The first stage of a trace: what watches it, and what is another during torch's export."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from samba.support.deviations import Deviations, deviations_of, tell
from samba.support.naming import root_name
from samba.tensor.labels import keep_names
from samba.tracer.assigned_state import AssignedState, behind_forward
from samba.tracer.backward_passes import watched_hooks
from samba.tracer.changed_state import TraceState
from samba.tracer.custom_gradients import GradientRecorder
from samba.tracer.data_dependent.branches import CheckedBranches
from samba.tracer.data_dependent.loops import HitLoops
from samba.tracer.errors import TraceError
from samba.tracer.forward_attributes import history_error
from samba.tracer.inputs import TraceInputs
from samba.tracer.layouts import Looks
from samba.tracer.patched_functions import TracedFunctions
from samba.tracer.random_draws import SeedWatch
from samba.tracer.rewrite import static_modules
from samba.tracer.shown_tensors import samba_names, show_names, shown_types
from samba.tracer.torch_internals import (
    FakeTensorMode,
    buffers_of,
    is_container_without_names,
    keystr,
    known_containers,
    parameters_of,
    parts_of,
    tree_flatten,
    tree_flatten_with_path,
    tree_unflatten,
)
from samba.tracer.torch_patches import (
    quiet_exporter,
    replaced,
    unchecked_distributions,
    unscripted_functions,
)
from samba.tracer.user_code import at_users_line, is_asked_by_torch

__all__ = ["Prepared", "as_traced", "plain_tensors", "prepare", "quiet", "refuse_scripted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A model that is about to be exported, and what watches it.

    Args:
        model: The model.
        given: What ``forward`` takes.
        inference: Whether it is traced in evaluation mode and without gradients.
        state: Puts back what ``forward`` changes beside buffers.
        told: What was told of the model.
        looks: What ``forward`` asks of how tensors lie in memory.
        seeds: What draws from a generator that ``forward`` has seeded.
        recorder: Gradients that the model defines itself.
        loops: Loops over the entries of a condition.
        branches: Branches on values.
        functions: The mode through which all functions go that ``forward`` calls.
        patches: What is another during the export, from the outermost on; to be entered once.
    """

    model: torch.nn.Module
    given: TraceInputs
    inference: bool
    state: TraceState
    told: Deviations
    looks: Looks
    seeds: SeedWatch
    recorder: GradientRecorder
    loops: HitLoops
    branches: CheckedBranches
    functions: TracedFunctions
    patches: tuple[AbstractContextManager[Any], ...]


def prepare(
    model: torch.nn.Module, given: TraceInputs, looks: Looks, state: TraceState, *, inference: bool
) -> Prepared:
    """Set up what watches a trace; the model is looked at, and stays as it is.

    Args:
        model: The model.
        given: What ``forward`` takes.
        looks: Where to note what it asks of how tensors lie in memory.
        state: Puts back what ``forward`` changes.
        inference: Whether to trace in evaluation mode and without gradients.

    Returns:
        The stage.

    Raises:
        GradientError: If a buffer was computed from a parameter.
        TraceError: If the class of one of the model's tensors computes otherwise than torch's.
    """
    _refuse_own_classes(model)
    for path, buffer in model.named_buffers():
        if not inference and buffer.grad_fn is not None:
            raise history_error(f"model {root_name(model)}, {path}")
    deviations, loops = deviations_of(model), HitLoops(model)
    seeds = SeedWatch(state.generators())
    recorder = GradientRecorder(model, deviations, partial(behind_forward, model, state))
    branches = CheckedBranches(model, recorder, loops)
    assigned = AssignedState(model, branches.known, state)
    functions = TracedFunctions(
        model, recorder, deviations, looks, branches, seeds, loops, assigned.stand_in
    )
    return Prepared(
        model=model,
        given=given,
        inference=inference,
        state=state,
        told=deviations,
        looks=looks,
        seeds=seeds,
        recorder=recorder,
        loops=loops,
        branches=branches,
        functions=functions,
        patches=(
            quiet(),
            as_traced(model, state, inference=inference),
            loops.watched(),
            # Hooks say what does not reach the device; gradients of the model's own are recorded.
            watched_hooks(model, deviations),
            assigned.written(),
            recorder.recording(),
            # Traced tensors have the names of SambaTensors.
            samba_names(model, given),
            # The mode for functions comes last: each one that ``forward`` calls goes there first.
            branches.deciding(functions.as_in_forward),
            functions,
        ),
    )


def refuse_scripted(model: torch.nn.Module) -> None:
    """Raise if a module of a model is scripted: its code is not Python any more.

    Raises:
        TraceError: With the paths of such modules.
    """
    scripted = [
        path or type(model).__name__
        for path, module in model.named_modules()
        if isinstance(module, torch.jit.ScriptModule)
    ]
    if scripted:
        raise TraceError(
            where=f"model {root_name(model)}",
            reason=f"torch.jit has scripted or traced {scripted[0]}, so its code is not Python",
            hint="Give samba.session.compile the module that was given to torch.jit.",
        )


_OF_NO_RESULT = frozenset(
    {
        *("__new__", "__init__", "__repr__", "__str__", "__format__", "__hash__", "__dict__"),
        *("__deepcopy__", "__copy__", "__reduce__", "__reduce_ex__", "__setstate__", "__module__"),
        *("__doc__", "__weakref__", "__slots__", "__annotations__", "__qualname__"),
    }
)
"""What a class of tensors may have of its own, and yet computes as torch's."""


def _refuse_own_classes(model: torch.nn.Module) -> None:
    """Raise if a tensor of a model is of a class that overrides what torch's tensors do."""
    for path, module in model.named_modules():
        for holder in (parameters_of(module), buffers_of(module), vars(module)):
            for name, tensor in holder.items():
                overridden = _overridden(type(tensor)) if isinstance(tensor, torch.Tensor) else ""
                if overridden:
                    raise TraceError(
                        where=f"model {root_name(model)}, {f'{path}.{name}' if path else name}",
                        reason=f"its class {type(tensor).__name__} overrides {overridden} of "
                        "torch's tensors, and a model is traced with torch's own",
                        hint="Make it a plain tensor, t.as_subclass(torch.Tensor), and write in "
                        "forward() what its class does.",
                    )


def _overridden(kind: type) -> str:
    """The first name of torch's tensors that a class of a user's has of its own; empty if none."""
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] in ("torch", "samba", "sambaflow"):
            break
        for name in vars(base):
            if name not in _OF_NO_RESULT and hasattr(torch.Tensor, name):
                return name
    return ""


@contextmanager
def as_traced(model: torch.nn.Module, state: TraceState, *, inference: bool) -> Iterator[None]:
    """While active, a model is called as in a trace, without what watches one.

    Args:
        model: The model.
        state: Puts back what ``forward`` changes.
        inference: Whether it is in evaluation mode and without gradients.
    """
    with ExitStack() as stack:
        # The user's modules find a ``type`` that shows torch's own classes of tensors.
        stack.enter_context(shown_types(model))
        # Each call of the model begins in the same state of its Python code.
        stack.enter_context(state.kept())
        # The exporter takes torch's own tensors, distributions whose checks read no values, and
        # functions of Python.
        stack.enter_context(plain_tensors(model))
        stack.enter_context(unchecked_distributions())
        stack.enter_context(unscripted_functions())
        # Results in forms that the exporter does not know, and modules that it cannot take.
        handle = model.register_forward_hook(lambda _, args, result: _plain_result(result))
        stack.callback(handle.remove)
        stack.enter_context(static_modules(model))
        # The model takes the branches that it takes in eager torch: some models run other code for
        # an exporter than for their user. Torch's own code gets the true answer.
        functions = (torch.compiler.is_compiling, torch.compiler.is_exporting)
        answers = {f.__name__: _told_to_torch(f) for f in functions}
        stack.enter_context(replaced(torch.compiler, **answers))
        stack.enter_context(_mode(model, inference=inference))
        yield


def _told_to_torch(answer: Callable[[], bool]) -> Callable[[], bool]:
    name = answer.__name__

    @functools.wraps(answer)
    def to_torch() -> bool:
        return answer() and is_asked_by_torch(name)

    return to_torch


@contextmanager
def quiet() -> Iterator[None]:
    """Hold back torch's own warnings about its exporter; the user can do nothing about them.

    Other warnings point at the user's line, and not at the line of this package or of torch.
    """
    with warnings.catch_warnings(), quiet_exporter():
        warnings.showwarning = at_users_line(warnings.showwarning)
        warnings.filterwarnings("ignore", category=FutureWarning)
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        # Of the exporter's own modules, which the hooks of all modules meet as well.
        warnings.filterwarnings("ignore", message=".*but received <class 'NoneType'>")
        yield


@contextmanager
def _mode(model: torch.nn.Module, *, inference: bool) -> Iterator[None]:
    """Evaluation mode while tracing for inference; every module's own mode afterwards."""
    if not inference:
        yield
        return
    training = [module for module in model.modules() if module.training]
    try:
        model.eval()
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def plain_tensors(model: torch.nn.Module) -> Iterator[None]:
    """Show torch plain tensors where the model holds subclasses of them.

    Parameters without values are shown as fake ones: they have no memory either.
    """
    classes: list[tuple[torch.Tensor, type]] = []
    replaced: list[tuple[dict[str, Any], str, Any]] = []
    fakes = _Fakes()
    try:
        for module in model.modules():
            parameters: dict[str, Any] = parameters_of(module)
            for key, parameter in list(parameters.items()):
                if not getattr(parameter, "_has_data", True):
                    replaced.append((parameters, key, parameter))
                    parameters[key] = fakes.of(parameter)
                elif parameter is not None and type(parameter) is not torch.nn.Parameter:
                    classes.append((parameter, type(parameter)))
                    parameter.__class__ = torch.nn.Parameter
        # A list may have parameters of any module, which are themselves there, too.
        for module in model.modules():
            for holder in (buffers_of(module), module.__dict__):
                for key, value in list(holder.items()):
                    plain = _plain(value)
                    if plain is not value:
                        replaced.append((holder, key, value))
                        holder[key] = plain
        yield
    finally:
        for holder, key, value in replaced:
            holder[key] = value
        for parameter, cls in classes:
            parameter.__class__ = cls


class _Fakes:
    """Fake parameters in the place of empty ones: the same for the same, all of one mode."""

    def __init__(self) -> None:
        self._mode: FakeTensorMode | None = None
        self._made: dict[int, torch.nn.Parameter] = {}

    def of(self, parameter: Any) -> torch.nn.Parameter:
        """The fake parameter of an empty one."""
        stand_in = self._made.get(id(parameter))
        if stand_in is None:
            self._mode = self._mode or FakeTensorMode(allow_non_fake_inputs=True)
            with self._mode:
                fake = torch.empty(tuple(parameter.shape), dtype=parameter.dtype)
            stand_in = torch.nn.Parameter(fake, parameter.requires_grad)
            vars(stand_in).update((k, v) for k, v in vars(parameter).items() if k != "_has_data")
            self._made[id(parameter)] = stand_in
        return stand_in


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if type(value) in (torch.Tensor, torch.nn.Parameter):
            return value
        if not getattr(value, "_has_data", True):
            if not value.materializer_provided:  # pyright: ignore[reportAttributeAccessIssue]  # a SambaTensor
                return value  # a handle, such as those in model.output_tensors
            value = value.torch_tensor()  # pyright: ignore[reportAttributeAccessIssue]  # as above
        plain = value.detach().as_subclass(torch.Tensor)
        keep_names(value, plain)
        return show_names(plain) if hasattr(value, "sn_name") else plain
    if type(value) in (list, tuple) and any(isinstance(v, torch.Tensor) for v in value):
        plain = [_plain(v) for v in value]
        same = all(new is old for new, old in zip(plain, value, strict=True))
        return value if same else type(value)(plain)  # a list may be held elsewhere, too
    return value


# -- results in the form that the exporter takes ----------------------------------------

_PLAIN_RESULTS = (torch.Tensor, bool, int, float, str, type(None))


def _plain_result(result: Any) -> Any:
    result = _named_parts(_as_dict(result))
    leaves, spec = tree_flatten_with_path(result, is_leaf=_is_dataclass)
    if all(not path or isinstance(leaf, _PLAIN_RESULTS) for path, leaf in leaves):
        return result
    plain: list[Any] = []
    for path, leaf in leaves:
        if path and _is_dataclass(leaf):
            plain.append(_plain_result(leaf))
        elif path and not isinstance(leaf, _PLAIN_RESULTS):
            tell(
                "output-no-tensor",
                f"forward() returns {keystr(path)} ({type(leaf).__name__}), which is not a tensor: "
                "it is left out",
            )
            plain.append(None)
        else:
            plain.append(leaf)
    return tree_unflatten(plain, spec)


def _named_parts(result: Any) -> Any:
    """A result with plain containers in the place of those whose parts torch cannot name.

    ``ModelOutput`` of transformers before 5 is such a container.
    """
    leaves, spec = tree_flatten(result, is_leaf=is_container_without_names)
    if not any(is_container_without_names(leaf) for leaf in leaves):
        return result
    return tree_unflatten([_in_plain_container(leaf) for leaf in leaves], spec)


def _in_plain_container(value: Any) -> Any:
    if not is_container_without_names(value):
        return value
    if isinstance(value, Mapping):
        return {key: _named_parts(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value):
        return {f.name: _named_parts(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return [_named_parts(part) for part in parts_of(value)]


def _is_dataclass(value: Any) -> bool:
    """A dataclass that torch does not know as a container."""
    return (
        dataclasses.is_dataclass(value)
        and not isinstance(value, type)
        and type(value) not in known_containers()
    )


def _as_dict(value: Any) -> Any:
    if not _is_dataclass(value):
        return value
    return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
