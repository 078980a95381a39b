"""Torch's private names that tracing uses: all of them are here, and nowhere else in the tracer.

Torch promises nothing about these. Each has a sentence about what it is used for and, in brackets,
the torch release that has it at the latest, as far as is known; which releases were tried with all
of them stands in ``emulator/versions.py``, and ``import samba`` refuses others.
Everything imported here is loaded by ``import torch`` itself; :func:`quiet_exporter` loads the
exporter when a model is traced.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, TypeGuard

import torch
from torch._C import DisableTorchFunction, DisableTorchFunctionSubclass, DispatchKey, _FunctionBase
from torch._C._functorch import TransformType, is_functorch_wrapped_tensor, peek_interpreter_stack
from torch._decomp import core_aten_decompositions, decomposition_table
from torch._dispatch.python import enable_python_dispatcher
from torch._export.utils import _compiling_state_context, _is_cia_op, _is_preservable_cia_op
from torch._ops import OpOverload as OpOverload
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes
from torch._subclasses.fake_tensor import (
    FakeTensor as FakeTensor,
    FakeTensorMode as FakeTensorMode,
    unset_fake_temporarily,
)
from torch.autograd import function
from torch.autograd.function import (
    BackwardCFunction as BackwardCFunction,
    FunctionCtx,
    _SingleLevelFunction,
)
from torch.distributions import Distribution
from torch.export import ExportedProgram
from torch.fx import proxy
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.fx.experimental.proxy_tensor import (
    _ProxyTensor,
    get_proxy_mode,
    get_proxy_slot,
    make_fx,
)
from torch.fx.node import has_side_effect
from torch.fx.proxy import TracerBase
from torch.nn.modules import module as module_module
from torch.nn.modules._functions import BackwardHookFunction as BackwardHookFunction
from torch.nn.modules.adaptive import _ASMoutput
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import (
    SUPPORTED_NODES,
    keystr as keystr,
    tree_flatten as tree_flatten,
    tree_flatten_with_path as tree_flatten_with_path,
    tree_leaves as tree_leaves,
    tree_map as tree_map,
    tree_unflatten as tree_unflatten,
)
from torch.utils._thunk import Thunk
from torch.utils.hooks import BackwardHook

# torch.utils._pytree: containers of tensors (arguments, results) as flat lists, in the order in
# which the exporter itself flattens them (2.3).

# FakeTensor, FakeTensorMode: tensors without values, for the shapes and strides of an operation's
# results and for parameters that have no memory (1.13).

# OpOverload: what a node of an exported graph calls (1.11).

DYNAMIC_SHAPE_ERRORS = frozenset({"DynamicOutputShapeException"})
"""Names of what the exporter raises where the shape of a result depends on data (1.13)."""

DATA_DEPENDENT_ERRORS = frozenset({"GuardOnDataDependentSymNode", "DataDependentOutputException"})
"""Names of what the exporter raises where ``forward`` reads the value of a tensor (2.1)."""

ASSERTIONS = frozenset({torch._assert, torch._assert_async})  # pyright: ignore[reportPrivateImportUsage]  # scripts call it so
"""Functions that raise unless a tensor is true, and do nothing else (1.10)."""

GROUPED_MM = torch._grouped_mm  # pyright: ignore[reportPrivateImportUsage]  # scripts call it so
"""What ``torch.nn.functional.grouped_mm`` calls (2.10)."""

pack_padded_sequence = torch._pack_padded_sequence  # pyright: ignore[reportPrivateImportUsage]  # torch.nn.utils.rnn calls it by this name
"""What packs a padded batch: it is refused by name while a model is traced (1.0)."""

BatchNormBase = _BatchNorm
"""What has ``forward`` of the batch norms of each number of dimensions (0.2)."""

adaptive_result = _ASMoutput
"""The named tuple that ``AdaptiveLogSoftmaxWithLoss`` returns (0.4)."""


def adaptive_log_probs(
    module: torch.nn.AdaptiveLogSoftmaxWithLoss, rows: torch.Tensor, head: torch.Tensor
) -> torch.Tensor:
    """The logarithms of the probabilities of all classes, by ``_get_full_log_prob`` (0.4).

    Args:
        module: The adaptive softmax.
        rows: Its input.
        head: What its head gives for that.
    """
    return module._get_full_log_prob(rows, head)


# -- operations ---------------------------------------------------------------


def is_operation(target: object) -> TypeGuard[OpOverload]:
    """Whether the target of a node is an operation, and not a Python function (1.11)."""
    return isinstance(target, OpOverload)


def graph_of(
    function: Callable[..., Sequence[torch.Tensor]], stand_ins: Sequence[torch.Tensor]
) -> torch.fx.Graph:
    """The operations that a function calls, composite ones as their parts, by ``make_fx`` (2.0).

    Args:
        function: Takes tensors, and returns a list of tensors.
        stand_ins: What it is called with, without values.
    """
    with enable_python_dispatcher():
        return make_fx(function)(*stand_ins).graph


def packet_of(op: Any) -> str:
    """The name of an operation without its overload, by ``_overloadpacket`` (1.11)."""
    return op._overloadpacket.__name__


def arguments_of(op: Any) -> list[Any]:
    """Names, defaults and aliases of an operation's arguments, by ``_schema`` (1.11)."""
    return op._schema.arguments


def returns_of(op: Any) -> list[Any]:
    """Types and aliases of an operation's results, by ``_schema`` (1.11)."""
    return op._schema.returns


def is_mutable(op: OpOverload) -> bool:
    """Whether an operation changes its arguments in place, by ``_schema`` (2.0)."""
    return op._schema.is_mutable


def is_composite(op: OpOverload) -> bool:
    """Whether the exporter takes an operation apart when it makes a graph functional (2.6)."""
    return _is_cia_op(op) and not _is_preservable_cia_op(op)


def is_made_of_others(op: OpOverload) -> bool:
    """Whether torch itself only computes an operation by others (2.6)."""
    return _is_cia_op(op)


_NEVER_RUN = frozenset({DispatchKey.Meta, DispatchKey.CompositeImplicitAutograd})


def has_own_kernel(op: OpOverload) -> bool:
    """Whether a kernel in Python runs in the place of an operation, by ``py_kernels`` (2.0)."""
    return bool(set(op.py_kernels) - _NEVER_RUN)


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Torch's own tables of how operations are made of others (2.0)."""
    return {**decomposition_table, **core_aten_decompositions()}


def promoted_dtype(operands: list[Any]) -> torch.dtype:
    """The dtype of an elementwise operation's result, by torch's own rules (1.13)."""
    kind = ELEMENTWISE_TYPE_PROMOTION_KIND.NO_OPMATH
    return elementwise_dtypes(*operands, type_promotion_kind=kind)[1]


def differentiates_functions() -> bool:
    """Whether a transform of ``torch.func`` that differentiates is running (2.0)."""
    level = peek_interpreter_stack()
    return level is not None and level.key() in (TransformType.Grad, TransformType.Jvp)


# -- tensors and modules ------------------------------------------------------


def contents_of(tensor: torch.Tensor) -> tuple[int, int]:
    """What changes with the values of a tensor: its version and its place in memory (0.2).

    Raises:
        RuntimeError: It has no version (an inference tensor) or no memory.
    """
    return tensor._version, tensor.data_ptr()


def versions_of(tensors: Sequence[torch.Tensor]) -> tuple[int, ...] | None:
    """How often tensors were changed in place, without a mode that sees who asks, by ``_version``.

    None if one has no such count, as those made for inference have none (1.9).
    """
    with DisableTorchFunction():
        if any(t.is_inference() for t in tensors):
            return None
        return tuple([t._version for t in tensors])


def storage_of(tensor: torch.Tensor) -> int:
    """What identifies the memory that a tensor shows, of a fake one too, by ``_cdata`` (2.0)."""
    return tensor.untyped_storage()._cdata


def fake_mode_of(values: Any) -> FakeTensorMode | None:
    """The mode of the first tensor without values in a container, by ``fake_mode`` (1.13)."""
    return next((v.fake_mode for v in tree_leaves(values) if hasattr(v, "fake_mode")), None)


def known_containers() -> Mapping[type, Any]:
    """Types that torch knows as containers of tensors (1.8)."""
    return SUPPORTED_NODES


def is_container_without_names(value: Any) -> bool:
    """Whether torch knows a container but not the names of its parts, to export it (2.2)."""
    node = SUPPORTED_NODES.get(type(value))
    return node is not None and node.flatten_with_keys_fn is None


def parts_of(container: Any) -> list[Any]:
    """The parts of a container that torch knows, in its order (2.0)."""
    return list(SUPPORTED_NODES[type(container)].flatten_fn(container)[0])


def parameters_of(module: torch.nn.Module) -> dict[str, torch.nn.Parameter | None]:
    """A module's own parameters, to exchange them without torch's checks (0.1)."""
    return module._parameters


def buffers_of(module: torch.nn.Module) -> dict[str, torch.Tensor | None]:
    """A module's own buffers, to exchange them without torch's checks (0.1)."""
    return module._buffers


# -- what is another while a model is traced ------------------------------------------


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


APPLY = "_apply"
"""The method of modules that ``to``, ``float``, ``half``, ... call (0.1)."""


def unchecked_distributions() -> AbstractContextManager[None]:
    """While active, ``torch.distributions`` leaves its arguments unchecked (1.8).

    The checks branch on values, and a graph cannot raise. Torch can set the default, but not tell
    it: that is ``_validate_args``.
    """
    return replaced(Distribution, _validate_args=False)


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
    def asked(*args: Any, **kwargs: Any) -> Any:
        return grad(own[0], *args, **kwargs)

    def ran(*args: Any, **kwargs: Any) -> Any:
        return backward(own[1], *args, **kwargs)

    return replaced(torch.autograd, grad=asked, backward=ran)


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
    return replaced(BackwardHook, _apply_on_tensors=lambda *given: apply(before, *given))


@contextmanager
def with_call(model: torch.nn.Module, call: Callable[..., Any]) -> Iterator[None]:
    """While active, calls of a module, its hooks included, go through another function (1.8).

    Args:
        model: The module.
        call: Takes torch's own ``_call_impl`` of the module, and the arguments.
    """
    own = model._call_impl
    model.__dict__["_call_impl"] = lambda *args, **kwargs: call(own, *args, **kwargs)
    try:
        yield
    finally:
        del model.__dict__["_call_impl"]


def hooks_of(module: torch.nn.Module) -> Mapping[str, dict[int, Callable[..., Any]]]:
    """The hooks of a module, by kind; they may be exchanged (2.0)."""
    return {
        "forward pre-hook": module._forward_pre_hooks,
        "forward hook": module._forward_hooks,
        "full backward pre-hook": module._backward_pre_hooks,
        "full backward hook": module._backward_hooks,
    }


def hook_tables_of(module: torch.nn.Module) -> Mapping[str, dict[int, Any]]:
    """The tables that registering a hook of a module may fill, by what to call them (2.0).

    They share keys: some say of a hook of another table how it is called.
    """
    return {
        **{f"{kind}s": hooks for kind, hooks in hooks_of(module).items()},
        "forward hooks with kwargs": module._forward_hooks_with_kwargs,
        "forward hooks always called": module._forward_hooks_always_called,
        "forward pre-hooks with kwargs": module._forward_pre_hooks_with_kwargs,
    }


def global_hooks() -> Mapping[str, dict[int, Callable[..., Any]]]:
    """The hooks of all modules, by kind; they may be exchanged (2.0)."""
    return {
        "global forward pre-hook": module_module._global_forward_pre_hooks,
        "global forward hook": module_module._global_forward_hooks,
        "global full backward pre-hook": module_module._global_backward_pre_hooks,
        "global full backward hook": module_module._global_backward_hooks,
    }


def has_old_backward_hooks(module: torch.nn.Module | None) -> bool:
    """Whether the backward hooks of a module are of ``register_backward_hook`` (1.8).

    Args:
        module: The module; None for those of all modules.
    """
    if module is None:
        is_full = module_module._global_is_full_backward_hook
        return bool(module_module._global_backward_hooks) and is_full is False
    return bool(module._backward_hooks) and module._is_full_backward_hook is False


def gradient_hooks(tensor: torch.Tensor) -> dict[int, Callable[..., Any]]:
    """What ``register_hook`` has registered on a tensor (0.2)."""
    with DisableTorchFunctionSubclass():  # an empty SambaTensor can be asked too
        return tensor._backward_hooks or {}


def accumulation_hooks(tensor: torch.Tensor) -> dict[int, Callable[..., Any]]:
    """What ``register_post_accumulate_grad_hook`` has registered on a tensor (2.1)."""
    with DisableTorchFunctionSubclass():  # as above
        return getattr(tensor, "_post_accumulate_grad_hooks", None) or {}


def keep_operation(op: OpOverload) -> None:
    """Let graphs keep an operation whose results nothing takes, by ``has_side_effect`` (2.3)."""
    has_side_effect(op)


def node_of(value: Any) -> tuple[torch.fx.Node, torch.nn.Module] | None:
    """The node that computes a tensor or a number in the graph that is being traced (2.1).

    Args:
        value: A tensor without values, or a symbolic number.

    Returns:
        The node, and the module that holds the constants of its graph; None if there is none.
    """
    mode = get_proxy_mode()
    if mode is None:
        return None
    slot = get_proxy_slot(value, mode.tracer, None)
    if isinstance(slot, Thunk):
        slot = slot.force()
    proxy = slot.proxy if isinstance(slot, _ProxyTensor) else slot
    return (proxy.node, mode.tracer.root) if isinstance(proxy, torch.fx.Proxy) else None


def with_truth(of: Callable[[torch.SymBool], bool]) -> AbstractContextManager[None]:
    """While active, the truth of a condition on symbolic numbers is asked of another (2.0).

    Args:
        of: Takes the condition; ``condition.node.bool_()`` is torch's own.
    """
    return replaced(torch.SymBool, __bool__=lambda self: of(self))


def is_transformed(tensor: torch.Tensor) -> bool:
    """Whether a transform of ``torch.func`` holds a tensor, ``vmap`` among them (2.0)."""
    return peek_interpreter_stack() is not None and is_functorch_wrapped_tensor(tensor)


def changes_of(tensor: torch.Tensor) -> int:
    """How often a tensor, or what shares its memory, was changed in place: ``_version`` (0.2)."""
    return tensor._version


@contextmanager
def outside_of_trace() -> Iterator[None]:
    """While active, torch computes: no mode of a trace sees what is called (2.1)."""
    with DisableTorchFunction(), unset_fake_temporarily(), _disable_current_modes():
        yield


def replacing_nodes(program: ExportedProgram) -> AbstractContextManager[Any]:
    """While active, the signature of an exported program follows nodes that are replaced (2.3)."""
    return program.graph_module._set_replace_hook(program.graph_signature.get_replace_hook())
