"""What of torch is another while a model is traced, by its private names.

Each says, as in ``torch_internals.py``, which torch release has the name at the latest.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch._C import _FunctionBase
from torch._export.utils import _compiling_state_context
from torch.autograd import function
from torch.autograd.function import (
    BackwardCFunction,
    FunctionCtx,
    _SingleLevelFunction,
)
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.distributions import Distribution
from torch.fx import proxy
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.fx.proxy import TracerBase
from torch.utils.hooks import BackwardHook, RemovableHandle

from samba.tracer.errors import TraceError
from samba.tracer.user_code import calling_line


@contextmanager
def replaced(owner: Any, **attributes: Any) -> Iterator[None]:
    """While active, attributes of a class or a module are others.

    Args:
        owner: The class or the module.
        attributes: The others by name. What the owner inherits it inherits again afterwards.
    """
    own = {name: vars(owner)[name] for name in attributes if name in vars(owner)}
    for name, value in attributes.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name in attributes:
            if name in own:
                setattr(owner, name, own[name])
            else:
                delattr(owner, name)


def unfollowed_assignments() -> AbstractContextManager[None]:
    """While active, the exporter follows no assignment of buffers by itself (2.6).

    ``register_buffer_assignment_hook`` sees those of the outermost module alone, and the exporter
    writes them one after the other at the end, into inputs that it finds among the
    ``_graph_input_names`` by counting: buffers that are None count, though none has an input.
    """
    import torch.export._trace as module  # noqa: PLC0415  # loads torch._dynamo, which takes a second

    names = module._graph_input_names  # pyright: ignore[reportPrivateImportUsage]  # as it is used there

    def unfollowed(root: torch.nn.Module, assigned: dict[str, str]) -> RemovableHandle:
        del root, assigned
        return RemovableHandle(OrderedDict[int, Any]())

    return replaced(
        module,
        register_buffer_assignment_hook=unfollowed,
        _graph_input_names=lambda graph: _Names(names(graph)),
    )


class _Names(list[str]):
    """Names, and an empty one wherever there is none."""

    def __getitem__(self, place: Any) -> Any:
        return "" if isinstance(place, int) and place >= len(self) else super().__getitem__(place)


@contextmanager
def uncounted_changes(tensors: Iterable[torch.Tensor]) -> Iterator[None]:
    """While active, autograd does not see that tensors are changed in place (2.1).

    Args:
        tensors: Those whose numbers of changes, which ``_unsafe_preserve_version_counter`` puts
            back, stay as they are.
    """
    with _unsafe_preserve_version_counter(tuple(tensors)):
        yield


def unchecked_distributions() -> AbstractContextManager[None]:
    """While active, ``torch.distributions`` leaves its arguments unchecked (1.8).

    The checks branch on values, and a graph cannot raise. Torch can set the default, but not tell
    it: that is ``_validate_args``.
    """
    return replaced(Distribution, _validate_args=False)


def unscripted_functions() -> AbstractContextManager[None]:
    """While active, functions of ``torch.jit.script`` are those that were scripted (2.1).

    From their second call on, torch runs them optimized, which a trace takes for a detached part.
    ``ScriptFunction`` keeps what was scripted as ``_torchdynamo_inline``.
    """

    own = torch.jit.ScriptFunction.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        function = vars(self).get("_torchdynamo_inline")
        if function is None and not torch.is_grad_enabled():
            return own(self, *args, **kwargs)
        if function is None:
            raise TraceError(
                where=calling_line(),
                reason=f"{self.name} is a function of torch.jit whose Python code is not there",
                hint="Call the function that was given to torch.jit.",
            )
        return function(*args, **kwargs)

    return replaced(torch.jit.ScriptFunction, __call__=call)


_LOGGERS = {
    "torch.fx.experimental.symbolic_shapes": logging.ERROR,
    "torch._subclasses.fake_tensor": logging.CRITICAL,
}
"""Loggers of the exporter that repeat what an error says, and above which level they are heard."""


@contextmanager
def quiet_exporter() -> Iterator[None]:
    """While active, the exporter prints and logs no graphs, and writes few as code (2.3).

    Where a branch depends on data, ``torch.export._trace`` prints the graph, and
    ``symbolic_shapes`` logs it; ``fake_tensor`` logs its traceback where shapes do not fit. The
    error says what a user can do. Torch writes Python code of each graph that it makes on the way,
    and compiles that; so it does only where the code is called.
    """
    import torch.export._trace  # noqa: PLC0415  # loads torch._dynamo, which takes a second

    with ExitStack() as stack:
        for name, quiet in _LOGGERS.items():
            log = logging.getLogger(name)
            stack.callback(log.setLevel, log.level)
            log.setLevel(quiet)
        stack.enter_context(replaced(torch.export._trace, print=lambda *args, **kwargs: None))
        stack.enter_context(_use_lazy_graph_module(True))
        stack.enter_context(replaced(proxy, CapturedTraceback=_Frames))
        stack.enter_context(replaced(TracerBase, _filter_traceback_frames=lambda _, frames: frames))
        yield


@contextmanager
def exporting() -> Iterator[None]:
    """While active, code finds that it is exported, by ``_compiling_state_context`` (2.6)."""
    with _compiling_state_context():
        yield


class _Frames:
    """Takes the lines of each ``forward`` on the stack, for each node (2.0).

    Torch takes all frames, turns each into texts, and loads its compiler to find out which of them
    are of no interest; then it keeps these.
    """

    @staticmethod
    def extract() -> type[_Frames]:
        return _Frames

    @staticmethod
    def summary() -> traceback.StackSummary:
        lines: list[tuple[str, int, str, str]] = []
        frame = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            if code.co_name == "forward":
                lines.append((code.co_filename, frame.f_lineno, code.co_name, ""))
            frame = frame.f_back
        return traceback.StackSummary.from_list(reversed(lines))


def with_functions(apply: Callable[..., Any]) -> AbstractContextManager[None]:
    """While active, ``apply`` of subclasses of ``torch.autograd.Function`` is another (2.0).

    ``Function.apply`` ends in that of its base class, also where a script has bound it before.

    Args:
        apply: Takes the class and what is applied to; :func:`function_outputs` is torch's own.
    """
    return replaced(_SingleLevelFunction, apply=classmethod(apply))


def function_outputs(cls: type, args: tuple[Any, ...]) -> Any:
    """Apply an autograd function as torch does, by ``_C._FunctionBase.apply`` (1.11)."""
    with grad_mode_after():
        return _FunctionBase.__dict__["apply"].__get__(None, cls)(*args)


@contextmanager
def grad_mode_after() -> Iterator[None]:
    """Say to the exporter at the end that gradients are on or off, as at the beginning (2.0).

    Torch turns them off in C while it runs what an autograd function defines. ``torch.no_grad()``
    or ``torch.enable_grad()`` in there ends with turning them off again, which the exporter sees;
    that they are on behind the function it sees only if it is told.
    """
    enabled = torch.is_grad_enabled()
    yield
    if enabled:
        torch._C._set_grad_enabled(enabled)


def with_saved_tensors(is_kept: Callable[[], bool]) -> AbstractContextManager[None]:
    """While active, autograd functions keep tensors as they are, and not as autograd does (2.0).

    What autograd gives back of a function's output is another tensor, which a trace does not know.

    Args:
        is_kept: Whether to do so now.
    """
    own = _FunctionBase.__dict__["saved_tensors"]

    def save(self: Any, *tensors: Any) -> None:
        if is_kept():
            self.kept_for_trace = tensors
        else:
            FunctionCtx.save_for_backward(self, *tensors)

    def saved(self: Any) -> Any:
        return vars(self).get("kept_for_trace") or own.__get__(self)

    return replaced(BackwardCFunction, save_for_backward=save, saved_tensors=property(saved))


def forget_saved_tensors(results: Iterable[torch.Tensor]) -> None:
    """Let go of what functions keep under :func:`with_saved_tensors`, which may be their results.

    Args:
        results: What the functions gave.
    """
    for result in results:
        getattr(result.grad_fn, "__dict__", {}).pop("kept_for_trace", None)


def with_gradients_asked(
    grad: Callable[..., Any], backward: Callable[..., Any]
) -> AbstractContextManager[None]:
    """While active, ``torch.autograd.grad`` and ``backward`` are called by others (0.2).

    ``Tensor.backward`` ends in ``torch.autograd.backward``.

    Args:
        grad, backward: Take torch's own function, and what that takes.
    """
    own = torch.autograd.grad, torch.autograd.backward

    # Functions, which have names: the exporter asks for these.
    def call_grad(*args: Any, **kwargs: Any) -> Any:
        return grad(own[0], *args, **kwargs)

    def call_backward(*args: Any, **kwargs: Any) -> Any:
        return backward(own[1], *args, **kwargs)

    return replaced(torch.autograd, grad=call_grad, backward=call_backward)


def with_vmapped_functions(call: Callable[..., Any]) -> AbstractContextManager[None]:
    """While active, functions under ``vmap`` or ``torch.func.grad`` are called by another (2.0)."""
    return replaced(function, custom_function_call=call)


def with_backward_hooks(apply: Callable[..., Any]) -> AbstractContextManager[None]:
    """While active, module hooks are put on tensors by another method than their own (2.0).

    Args:
        apply: Takes torch's own ``BackwardHook._apply_on_tensors`` and what that takes: the hook, a
            function of the node of a backward pass, and arguments of a module.
    """
    before = BackwardHook._apply_on_tensors
    return replaced(BackwardHook, _apply_on_tensors=lambda *args: apply(before, *args))


def with_call(model: torch.nn.Module, call: Callable[..., Any]) -> AbstractContextManager[None]:
    """While active, calls of a module, its hooks included, go through another function (1.8).

    Args:
        model: The module.
        call: Takes torch's own ``_call_impl`` of the module, or what is in its place already, and
            the arguments.
    """
    own = model._call_impl
    return replaced(model, _call_impl=lambda *args, **kwargs: call(own, *args, **kwargs))


@contextmanager
def with_numbers(
    truth: Callable[[torch.SymBool], bool],
    number: Callable[[torch.SymInt | torch.SymFloat], int | float | None],
) -> Iterator[None]:
    """While active, what Python gets of symbolic numbers is asked of others (2.0).

    Args:
        truth: Gives the truth of a condition; ``condition.node.bool_()`` is torch's own.
        number: Gives what ``int`` or ``float`` is to give; None to ask torch.
    """

    def asking(own: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def asked(self: Any) -> Any:
            answer = number(self)
            return own(self) if answer is None else answer

        return asked

    with (
        replaced(torch.SymBool, __bool__=lambda self: truth(self)),
        replaced(
            torch.SymInt,
            __int__=asking(torch.SymInt.__int__),
            __index__=asking(torch.SymInt.__index__),  # which float asks
        ),
        replaced(
            torch.SymFloat,
            __int__=asking(torch.SymFloat.__int__),
            __float__=asking(torch.SymFloat.__float__),
        ),
    ):
        yield
