"""Torch's private names that tracing uses: all are here or in ``torch_patches.py``, nowhere else.

Torch promises nothing about these. Each has a sentence about what it is used for and, in brackets,
the torch release that has it at the latest, as far as is known; which releases were tried with all
of them stands in ``emulator/versions.py``, and ``import samba`` refuses others.
Everything imported here is loaded by ``import torch`` itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeGuard

import torch
from torch._C import DisableTorchFunction, DisableTorchFunctionSubclass, DispatchKey
from torch._C._functorch import TransformType, is_functorch_wrapped_tensor, peek_interpreter_stack
from torch._decomp import core_aten_decompositions, decomposition_table
from torch._dispatch.python import enable_python_dispatcher
from torch._export.utils import _is_cia_op, _is_preservable_cia_op
from torch._ops import OpOverload as OpOverload
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes
from torch._subclasses.fake_tensor import (
    FakeTensor as FakeTensor,
    FakeTensorMode as FakeTensorMode,
    unset_fake_temporarily,
)
from torch.autograd.function import BackwardCFunction as BackwardCFunction
from torch.export import ExportedProgram
from torch.fx.experimental.proxy_tensor import (
    _ProxyTensor,
    get_proxy_mode,
    get_proxy_slot,
    make_fx,
)
from torch.fx.node import has_side_effect
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


APPLY = "_apply"
"""The method of modules that ``to``, ``float``, ``half``, ... call (0.1)."""


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


def modules_of(module: torch.nn.Module) -> dict[str, torch.nn.Module | None]:
    """The parts of a module (0.1); of what stands for it in a trace, ``_modules`` is a copy."""
    return vars(module)["_modules"]


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
