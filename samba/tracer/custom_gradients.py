"""Gradients that a model defines itself, recorded while it is traced.

``torch.autograd.Function`` and hooks say how gradients are computed. What they compute forwards is
traced as everything else is, apart from its history; a marker (:mod:`samba.tracer.marker_ops`)
ties results and inputs together. When ``forward`` has returned, the backward passes are run
(:mod:`samba.tracer.backward_passes`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from samba.support.deviations import Deviations
from samba.tracer.backward_passes import GradientRecord, Pending, run_backward, tensors_in
from samba.tracer.errors import GradientError
from samba.tracer.marker_ops import marked, register
from samba.tracer.repeated_state import RepeatedState
from samba.tracer.torch_internals import (
    BackwardHookFunction,
    accumulation_hooks,
    gradient_hooks,
    tree_map,
)
from samba.tracer.torch_patches import (
    forget_saved_tensors,
    function_outputs,
    replaced,
    with_backward_hooks,
    with_call,
    with_functions,
    with_saved_tensors,
    with_vmapped_functions,
)
from samba.tracer.traced import carries_gradient
from samba.tracer.user_code import calling_line, described, line_of

REGISTERS = frozenset({torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook})
"""Functions by which ``forward`` puts hooks on tensors."""

_ACTIVE = threading.local()


class GradientRecorder:
    """Records the gradients that a model defines itself, while it is traced.

    Args:
        model: The model.
        told: Where warnings are told, each once.
        in_left_state: Gives the model's Python code the state that ``forward`` has left, for the
            backwards.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        told: Deviations,
        in_left_state: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._model, self._told, self._in_left_state = model, told, in_left_state
        # While it is traced, the model holds parameters without values, and without hooks.
        self._originals = dict(model.named_parameters())
        self._pending: list[Pending] = []
        self._open = self._is_behind = False
        self._depth = 0
        self.records: tuple[GradientRecord, ...] = ()
        self.outputs = 0
        """How many outputs the exported graph has in addition to the model's."""
        self._returned: tuple[torch.Tensor, ...] = ()
        self._graded: dict[str, torch.Tensor] = {}
        self.repeated = RepeatedState(model, told)
        self.repeats = False
        """Whether a backward pass by torch would call parts of ``forward`` again (a checkpoint)."""
        self.graded_state: frozenset[str] = frozenset()
        """Names of the buffers that the model has given a history."""
        self.asked = ("", "")
        """What asks for a gradient in its backward, and the line; empty if nothing does."""

    @contextmanager
    def recording(self) -> Iterator[None]:
        """While active, calls of the model return its results and, if there are any, gradients.

        Raises:
            GradientError: From a call, if a backward pass or a hook cannot be traced.
        """
        register()
        outer = getattr(_ACTIVE, "recorder", None)
        with ExitStack() as stack:
            _ACTIVE.recorder = self
            stack.callback(setattr, _ACTIVE, "recorder", outer)
            stack.enter_context(with_functions(_apply))
            stack.enter_context(with_saved_tensors(lambda: _recorder() is not None))
            stack.enter_context(with_backward_hooks(_apply_on_tensors))
            stack.enter_context(with_vmapped_functions(_refuse_vmap))
            stack.enter_context(_functions_in_place())
            stack.enter_context(_saved_tensors())
            stack.enter_context(with_call(self._model, self._call))
            yield

    def taken_history(self) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
        """What the model returned, if torch's engine can run over its history; buffers with one.

        Returns:
            The tensors, which are forgotten here, and by name the buffers that it changed in place.
        """
        history = self._returned, self._graded
        self._returned, self._graded = (), {}
        return history

    @property
    def runs_backward(self) -> bool:
        """Whether a backward pass is being traced, behind ``forward``."""
        return self._depth > 0 and self._is_behind

    @property
    def is_open(self) -> bool:
        """Whether ``forward`` is being traced, with gradients."""
        return self._open

    # -- what forward defines -------------------------------------------------

    def _call(self, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call the model; the outermost call ends with the backward passes."""
        if self._depth:
            return own(*args, **kwargs)
        self._pending, self.records, self.outputs, self.repeats = [], (), 0, False
        self.asked = ("", "")
        self._depth, self._open = 1, torch.is_grad_enabled()
        before = dict(self._model.named_buffers())
        try:
            result = own(*args, **kwargs)
            if self._open:
                self._hooks_on_parameters()
            self._open, self._is_behind = False, True
            gradients: tuple[torch.Tensor, ...] = ()
            if self._pending:
                with self._in_left_state():
                    self.records, gradients = run_backward(
                        self._pending, result, self._told, self._note_asked
                    )
            self.outputs = len(gradients)
            self._returned = () if self._pending or self.repeats else tensors_in(result)
            graded = {n: b for n, b in self._model.named_buffers() if b.grad_fn is not None}
            self._graded = {n: b for n, b in graded.items() if b is before.get(n)}
            self.graded_state = frozenset(graded)
        finally:
            self._depth, self._open, self._is_behind = 0, False, False
            for pending in self._pending:
                forget_saved_tensors(pending.results)
            self._pending = []
        return (result, gradients) if gradients else result

    def _note_asked(self, what: str, line: str) -> None:
        self.asked = what, line

    def apply(self, cls: type[torch.autograd.Function], args: tuple[Any, ...]) -> Any:
        """Apply an autograd function; its results have the gradient that it defines.

        Args:
            cls: The function.
            args: What it is applied to.
        """
        if not self._open or not torch.is_grad_enabled():
            return function_outputs(cls, args)
        wanting = any(isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args)
        if cls.__module__ == "torch.utils.checkpoint" and callable(args[0]) and wanting:
            # The same values and gradients, kept instead of made again.
            with self.repeated.within():
                return _as_of_a_function(args[0](*args[2:]))
        if not wanting:
            result = function_outputs(cls, args)
            if isinstance(result, tuple):
                return tuple(_without_history(output) for output in result)
            return _without_history(result)
        if cls.__module__.startswith("torch."):
            return function_outputs(cls, args)
        backward = cls.vjp if cls.backward is torch.autograd.Function.backward else cls.backward
        return self._applied(
            cls, args, name=f"{cls.__qualname__}.{backward.__name__}", source=line_of(backward)
        )

    def apply_module_hook(self, given: Sequence[torch.Tensor], on: Callable[[Any], None]) -> Any:
        """Put a module's backward hooks on tensors that go into it or come out of it.

        Args:
            given: The tensors.
            on: Registers the hooks on the node of a backward pass.

        Returns:
            The same tensors with these hooks.
        """
        return self._applied(BackwardHookFunction, tuple(given), name="", source="", on=on)

    def _applied(
        self,
        cls: type[torch.autograd.Function],
        args: tuple[Any, ...],
        *,
        name: str,
        source: str,
        on: Callable[[Any], None] | None = None,
    ) -> Any:
        wanting = [isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args]
        own = tuple(
            arg.detach().requires_grad_(wants) if isinstance(arg, torch.Tensor) else arg
            for arg, wants in zip(args, wanting, strict=True)
        )
        returned = function_outputs(cls, own)
        outputs = returned if isinstance(returned, tuple) else (returned,)
        differentiable = [
            i for i, o in enumerate(outputs) if isinstance(o, torch.Tensor) and o.requires_grad
        ]
        new = [o if i in differentiable else _without_history(o) for i, o in enumerate(outputs)]
        if not differentiable:
            return tuple(new) if isinstance(returned, tuple) else new[0]
        results = tuple(outputs[i] for i in differentiable)
        if on is not None:
            on(results[0].grad_fn)
        pending = Pending(
            name=name or f"backward hooks at {calling_line()}",
            source=source or calling_line(),
            inputs=tuple(a for a, wants in zip(args, wanting, strict=True) if wants),
            leaves=tuple(a for a, wants in zip(own, wanting, strict=True) if wants),
            results=results,
            moves=on is not None,
        )
        for i, tensor in zip(differentiable, self._mark(pending), strict=True):
            new[i] = tensor
        return tuple(new) if isinstance(returned, tuple) else new[0]

    def _mark(self, pending: Pending) -> tuple[torch.Tensor, ...]:
        results = [result.detach() for result in pending.results]
        pending.marked = tuple(marked(results, list(pending.inputs), len(self._pending)))
        self._pending.append(pending)
        return pending.marked

    # -- hooks on tensors -----------------------------------------------------

    def register(self, func: Callable[..., Any], tensor: torch.Tensor, hook: Any) -> Any:
        """Record a hook that ``forward`` puts on a tensor.

        Args:
            func: One of :data:`REGISTERS`.
            tensor: The tensor.
            hook: The hook.

        Returns:
            The handle that removes it.
        """
        if not self._open or not tensor.requires_grad:
            return func(tensor, hook)  # torch raises where there is no gradient
        line = calling_line()
        if func is torch.Tensor.register_post_accumulate_grad_hook:
            raise _accumulating(f"a tensor in forward(), {line}", [hook])
        if tensor.is_leaf:
            raise GradientError(
                where=line,
                reason=f"forward() puts {described(hook)} on a parameter or an input",
                hint="It would be put there again in every step. Register it once, before the "
                "model is compiled, or on a tensor that is computed from the parameter.",
                deviation="hook-on-leaf",
            )
        pending = self._around(tensor, f"hook of Tensor.register_hook at {line}", line)
        handle = RemovableHandle(pending.hooks)
        pending.hooks[handle.id] = hook
        return handle

    def _around(self, tensor: torch.Tensor, name: str, source: str) -> Pending:
        leaf = tensor.detach().requires_grad_()
        pending = Pending(
            name=name,
            source=source,
            inputs=(tensor,),
            leaves=(leaf,),
            results=function_outputs(BackwardHookFunction, (leaf,)),  # an identity
            moves=True,
            around=True,
        )
        self._mark(pending)
        return pending

    def _hooks_on_parameters(self) -> None:
        for path, parameter in self._model.named_parameters():
            original = self._originals.get(path, parameter)
            late = accumulation_hooks(original)
            if late:
                raise _accumulating(f"parameter {path}", list(late.values()))
            hooks = gradient_hooks(original)
            if hooks and parameter.requires_grad:
                line = line_of(next(iter(hooks.values())))
                pending = self._around(parameter, f"hook of parameter {path}", line)
                pending.hooks.update(hooks)


def _as_of_a_function(result: Any) -> Any:
    """What a function gives: tensors within other containers than a tuple have no gradient."""
    if isinstance(result, torch.Tensor):
        return result
    if type(result) is tuple:
        return tuple(o if isinstance(o, torch.Tensor) else _as_nested(o) for o in result)
    return _as_nested(result)


def _as_nested(output: Any) -> Any:
    return tree_map(_without_history, output)


def _without_history(output: Any) -> Any:
    """What a function has computed apart from autograd: the graph shall know that, too."""
    if isinstance(output, torch.Tensor) and carries_gradient(output):
        return output.detach()
    return output


# -- what takes the place of torch's functions ----------------------------------


def _recorder() -> GradientRecorder | None:
    """What records in this thread now."""
    recorder: GradientRecorder | None = getattr(_ACTIVE, "recorder", None)
    return recorder if recorder is not None and recorder.is_open else None


def _apply(cls: type[torch.autograd.Function], *args: Any) -> Any:
    recorder = _recorder()
    return function_outputs(cls, args) if recorder is None else recorder.apply(cls, args)


def _apply_on_tensors(
    own: Callable[..., Any], hook: Any, on: Callable[[Any], None], args: Sequence[Any]
) -> tuple[Any, list[int] | None]:
    """What ``BackwardHook`` does, with results that are recorded."""
    recorder = _recorder()
    if recorder is None:
        return own(hook, on, args)
    places = [i for i, arg in enumerate(args) if isinstance(arg, torch.Tensor)]
    if not any(args[i].requires_grad for i in places) or not torch.is_grad_enabled():
        return args, None
    new = list(args)
    for i, tensor in zip(
        places, recorder.apply_module_hook([args[i] for i in places], on), strict=True
    ):
        new[i] = tensor
    return (tuple(new) if type(args) is tuple else type(args)(*new)), places


def _refuse_vmap(cls: type[torch.autograd.Function], *args: Any, **kwargs: Any) -> Any:
    raise GradientError(
        where=calling_line(),
        reason=f"{cls.__qualname__} is applied under torch.vmap or torch.func.grad",
        hint="Apply it to the whole batch: the functions of torch.func cannot be compiled "
        "together with an autograd function.",
        deviation="transformed-function",
    )


def _functions_in_place() -> AbstractContextManager[None]:
    """While active, a function that changes its input is refused."""
    context = torch.autograd.function.FunctionCtx
    before = context.mark_dirty

    def refuse(self: Any, *args: torch.Tensor) -> None:
        if _recorder() is None or not args:
            return before(self, *args)
        raise GradientError(
            where=calling_line(),
            reason=f"{type(self).__name__.removesuffix('Backward')} changes its input in place "
            "(ctx.mark_dirty)",
            hint="Return a new tensor instead.",
            deviation="function-in-place",
        )

    return replaced(context, mark_dirty=refuse)


def _saved_tensors() -> AbstractContextManager[None]:
    """While active, hooks on what autograd saves are refused: the device saves by itself."""
    hooks = torch.autograd.graph.saved_tensors_hooks
    before, after = hooks.__enter__, hooks.__exit__

    def refuse(self: Any) -> Any:
        recorder = _recorder()
        if recorder is None:
            return before(self)
        if type(self) is not hooks:  # those of a checkpoint
            recorder.repeats = True
            self.samba_start = recorder.repeated.enter()
            return before(self)
        raise GradientError(
            where=calling_line(),
            reason=f"saved_tensors_hooks with {described(self.pack_hook)} and "
            f"{described(self.unpack_hook)} may change what gradients are computed from",
            hint="The device decides by itself what it keeps for the backward pass. Leave the "
            "hooks out, or write an autograd function that saves what it needs.",
            deviation="saved-tensors-hooks",
        )

    def leave(self: Any, *raised: Any) -> Any:
        recorder, start = _recorder(), vars(self).pop("samba_start", None)
        if recorder is not None and start is not None and raised[0] is None:
            recorder.repeated.leave(start)
        return after(self, *raised)

    return replaced(hooks, __enter__=refuse, __exit__=leave)


def _accumulating(what: str, hooks: Sequence[Any]) -> GradientError:
    return GradientError(
        where=line_of(hooks[0]) or "a hook",
        reason=f"register_post_accumulate_grad_hook on {what}: "
        f"{', '.join(described(hook) for hook in hooks)}",
        hint="The device accumulates gradients and updates parameters by itself. Change gradients "
        "with Tensor.register_hook, and give the optimizer to session.compile.",
        deviation="accumulation-hook",
    )
