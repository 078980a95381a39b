"""A log of one call of ``forward``.

Whatever ``forward`` calls of torch is logged: functions with their numbers, operations of ATen with
the places that their tensors come from. Results have shapes and types, but no values, so a call
takes microseconds an operation, whatever the size of the model. Two calls with one log compute the
same.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch.fx.traceback import get_current_meta
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from samba.remembering.stand_ins import (
    CPU,
    META,
    Incomparable,
    StandIn,
    digest_of,
    memory_of,
    meta_like,
)
from samba.tensor.views import host_of, strides_of
from samba.tracer.torch_internals import (
    FakeTensor,
    OpOverload,
    arguments_of,
    is_mutable,
    outside_of_trace,
    returns_of,
    tree_leaves,
)
from samba.tracer.user_code import is_user_file
from samba.tracer.whole_functions import grouped_form

_MOST_BYTES = 1 << 28
"""Bytes of constants that are read; more take longer than a trace."""

_NAMESPACES = frozenset({"aten", "prims", "prim"})
"""Of operations that torch itself defines: what others do is known to those who define them."""

_PLAIN = (
    *(bool, int, float, complex, str, bytes, type(None), type(Ellipsis), slice, range),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size),
)
_VALUE = torch.ops.aten._local_scalar_dense.default
"""What ``item()`` and a branch call."""
_GROUPED = torch.ops.aten._grouped_mm.default


def _grouped(mat_a: torch.Tensor, *rest: Any, **options: Any) -> torch.Tensor:
    """A grouped product on the meta device, which takes bfloat16 alone where a CPU takes more."""
    result = _GROUPED if mat_a.dtype is torch.bfloat16 else grouped_form
    return result(mat_a, *rest, **options)


_FORMS_OF: Mapping[OpOverload, Callable[..., Any]] = MappingProxyType({_GROUPED: _grouped})
"""What is called on the meta device in the place of an operation."""


class CallLog(TorchDispatchMode):
    """While active, operations are logged, and give tensors that stand for their results.

    Tensors with values that the call meets are constants of a graph, and their values are logged.

    Args:
        names: What the graph calls some of them, by their identities.
    """

    supports_higher_order_operators = True  # they are refused by name

    def __init__(self, names: Mapping[int, str]) -> None:
        super().__init__()
        self._names = names
        self._state = hashlib.sha256()
        self._bytes = 0
        self._held: dict[int, tuple[torch.Tensor, StandIn, str]] = {}
        """Parameters and buffers by the numbers of what stands for them, each with its path."""
        self._owners: dict[int, str] = {}
        """Which of them has the memory at an address."""
        self._constants: dict[int, tuple[torch.Tensor, StandIn, str]] = {}
        """What stands for constants, by their identities, each with the digest of its values."""
        self._written: set[int] = set()
        """Numbers of tensors whose memory was written."""
        self._made = 0
        self._results_by_form: dict[tuple[Any, ...], Any] = {}
        """What operations gave on the meta device."""
        self.functions = _FunctionLog(self)

    def hexdigest(self) -> str:
        """The digest of the log.

        Raises:
            Incomparable: If a constant is no longer what it was when the call met it.
        """
        for tensor, _, digest in self._constants.values():
            with outside_of_trace():
                if digest_of(tensor) != digest:
                    raise Incomparable("forward()", "changes the values of a constant")
        return self._state.hexdigest()

    def put(self, text: str) -> None:
        """Log a text."""
        data = text.encode("utf-8", "surrogatepass")
        self._state.update(len(data).to_bytes(8, "little"))
        self._state.update(data)

    def stand_in(self, form: torch.Tensor, *, requires_grad: bool = False) -> StandIn:
        """A new tensor of the form of another, as an input.

        Args:
            form: The other.
            requires_grad: As of any tensor.
        """
        return self._wrapped(meta_like(form), requires_grad=requires_grad)

    def held(self, tensor: torch.Tensor, path: str) -> StandIn:
        """A new tensor for a parameter or a buffer, whose values do not count unless they are read.

        Args:
            tensor: The parameter or buffer.
            path: Its path from the model on.
        """
        twin = self._wrapped(
            meta_like(tensor),
            requires_grad=tensor.requires_grad,
            is_parameter=isinstance(tensor, torch.nn.Parameter),
        )
        self.put(f"t{twin.number} {path}")
        if (memory := memory_of(tensor)) is not None:
            self._owners.setdefault(memory, path)
        self._held[twin.number] = tensor, twin, path
        return twin

    def place_of(self, tensor: torch.Tensor) -> str:
        """The name of a tensor in the log.

        Args:
            tensor: A result of ``forward``: a tensor that stands in, or one of the model's own.
        """
        return f"t{self._stand_in_of(tensor).number}"

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Log an operation, and call it on the meta device."""
        if not isinstance(func, OpOverload) or func.namespace not in _NAMESPACES:
            raise Incomparable(str(func), "is not an ATen operation")
        if func is _VALUE:
            return self._value_of(args[0])
        if torch.Tag.inplace_view in func.tags:
            raise Incomparable(str(func), "changes the shape or strides of a tensor in place")
        words = [func.name(), "grad" if torch.is_grad_enabled() else "no grad"]
        if marks := get_current_meta().get("custom"):
            words.append(repr(sorted(marks.items())))  # of session.disable_graphamp(), for example
        forms: list[Any] = [func, torch.get_default_dtype()]
        metas = self._argument(args, words, forms)
        options: dict[str, Any] = {}
        for key, value in (kwargs or {}).items():
            words.append(key)
            forms.append(key)
            options[key] = self._argument(value, words, forms)
        self.put("\0".join(words))
        if "device" in options:
            if options["device"] not in (None, CPU):
                raise Incomparable(str(func), f"asks for device {options['device']}")
            options["device"] = META
        elif _makes_tensors(func):
            options["device"] = META
        try:
            result = self._on_meta(func, metas, options, tuple(forms))
        except RuntimeError as error:
            raise Incomparable(str(func), f"needs the values of its tensors: {error}") from None
        if is_mutable(func):
            written = _written(func, args, kwargs or {})
            self._written |= {self._stand_in_of(tensor).memory for tensor in written}
            if any(twin.memory in self._written for _, twin, _ in self._constants.values()):
                raise Incomparable("forward()", "writes into a constant")  # torch would mark it
            if _returns(func, write=True):
                if len(written) != len(returns_of(func)):
                    raise Incomparable(str(func), "returns some of the tensors that it writes")
                return written[0] if len(written) == 1 else tuple(written)
        shares = args and isinstance(args[0], torch.Tensor) and _returns(func, write=False)
        return self._results(result, self._stand_in_of(args[0]).memory if shares else 0)

    def _argument(self, value: Any, words: list[str], forms: list[Any]) -> Any:
        """An argument with the meta device's tensors in it.

        What it is goes to the words, and to the forms without saying which tensors they are.
        """
        if isinstance(value, torch.Tensor):
            stand_in = self._stand_in_of(value)
            words.append(f"t{stand_in.number}")
            forms.append(_form(stand_in.meta))
            return stand_in.meta
        if isinstance(value, (list, tuple)):
            words.append(f"[{len(value)}")
            forms.append(words[-1])
            return [self._argument(item, words, forms) for item in value]
        if not isinstance(value, _PLAIN):
            raise Incomparable("an operation", f"takes a {type(value).__qualname__}")
        words.append(repr(value))
        forms.append(words[-1])
        return value

    def _on_meta(
        self, func: OpOverload, args: list[Any], options: dict[str, Any], form: tuple[Any, ...]
    ) -> Any:
        """Call an operation on the meta device, once for all calls of one form.

        Layers repeat them, and torch has many of its kernels for that device in Python.
        """
        call = _FORMS_OF.get(func, func)
        if any(r.alias_info is not None for r in returns_of(func)) or is_mutable(func):
            return call(*args, **options)
        if form not in self._results_by_form:
            self._results_by_form[form] = call(*args, **options)
        return _made_again(self._results_by_form[form])

    def _results(self, result: Any, memory: int) -> Any:
        if isinstance(result, torch.Tensor):
            return self._wrapped(result, memory)
        if isinstance(result, (list, tuple)):
            return type(result)(self._results(item, memory) for item in result)
        return result

    def _wrapped(self, meta: torch.Tensor, memory: int = 0, **options: bool) -> StandIn:
        self.put(str(meta.dtype))  # torch's default is none of the arguments
        if meta.layout is not torch.strided or not meta.is_meta:
            raise Incomparable("an operation", f"makes a {meta.layout} tensor on {meta.device}")
        self._made += 1
        return StandIn(meta, self._made, memory or self._made, **options)

    def _stand_in_of(self, tensor: torch.Tensor) -> StandIn:
        return tensor if isinstance(tensor, StandIn) else self._twin(tensor)

    def _twin(self, tensor: torch.Tensor) -> StandIn:
        """What stands for a constant."""
        if (known := self._constants.get(id(tensor))) is not None:
            return known[1]
        twin = self._wrapped(meta_like(tensor))
        form = strides_of(host_of(tensor)), tensor.requires_grad, _labels_of(tensor)
        digest = self._digest(tensor)
        owner = self._owners.get(memory_of(tensor) or 0)
        self.put(f"t{twin.number} {form} {digest} {self._names.get(id(tensor))} {owner}")
        self._constants[id(tensor)] = tensor, twin, digest
        return twin

    def _value_of(self, tensor: torch.Tensor) -> Any:
        """The number in a buffer or a constant that the call has left as it was."""
        if not isinstance(tensor, StandIn):
            self._twin(tensor)
            source, path = tensor, ""
        elif tensor.number in self._held:
            source, _, path = self._held[tensor.number]
        else:
            raise Incomparable("forward()", "reads the value of a tensor")
        if isinstance(source, FakeTensor):
            raise Incomparable("forward()", "reads a value that is not known")
        memory = memory_of(source)
        for other, twin, _ in self._held.values():
            if twin.memory in self._written and memory in (None, memory_of(other)):
                raise Incomparable("forward()", "reads a value that it has changed")
        with outside_of_trace():
            value = source.item()
        self.put(f"value {value!r} {path}")
        return value

    def _digest(self, tensor: torch.Tensor) -> str:
        if isinstance(tensor, FakeTensor):
            raise Incomparable("forward()", "takes a tensor of another trace")
        self._bytes += tensor.nbytes
        if self._bytes > _MOST_BYTES:
            raise Incomparable("forward()", f"has more than {_MOST_BYTES} bytes of constants")
        with outside_of_trace():
            return digest_of(tensor)


class _FunctionLog(TorchFunctionMode):
    """Logs the functions that ``forward`` calls of torch, with the numbers that they are given.

    Of some functions nothing but numbers tells what the tracer makes of them: a dropout of rate 0
    is not an operation.
    """

    def __init__(self, log: CallLog) -> None:
        super().__init__()
        self._log = log
        self._names: dict[Any, str] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Log a call, and make it."""
        if func in _FORMS and isinstance(args[0], StandIn):
            return func(*args, **(kwargs or {}))
        name = self._name(func)
        if name.endswith(_MARKING) and args and _is_users(args[0]):
            raise Incomparable("forward()", f"calls {name} of a constant")
        words = [name, _line()]
        for key, value in (*enumerate(args), *(kwargs or {}).items()):
            words.append(f"{key}={_shown(value)}")
        self._log.put("\0".join(words))
        return func(*args, **(kwargs or {}))

    def _name(self, func: Callable[..., Any]) -> str:
        name = self._names.get(func)
        if name is None:
            if func in _HOOKS:
                raise Incomparable(func.__qualname__, "registers a hook")
            if func in _REACHING:
                raise Incomparable("forward()", f"calls {func.__qualname__}")
            owner = getattr(func, "__self__", None)
            name = f"{getattr(func, '__module__', '')}.{getattr(func, '__qualname__', '')}"
            name = self._names[func] = f"{getattr(owner, '__name__', '')} {name}"
        return name


def _line() -> str:
    """The line of the user's that calls a function in ``forward``: messages of a trace have it."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") != _CALLER:
        if is_user_file(frame.f_code.co_filename):
            return f"{frame.f_code.co_name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


_CALLER = "samba.remembering.forward_call"
"""The module that calls ``forward``."""

_HOOKS = (torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook)
_FORMS = frozenset(
    {
        *(torch.Tensor.dim, torch.Tensor.size, torch.Tensor.numel),
        *(getattr(torch.Tensor, name).__get__ for name in ("dtype", "shape", "ndim", "device")),
    }
)
"""Functions that say what form a tensor has: what comes of the answer is logged, not the question.

A library may ask in its first call only."""

_REACHING = (
    *(torch.Tensor.backward, torch.autograd.backward),
    *(torch.Tensor.numpy, torch.Tensor.__array__, torch.Tensor.data_ptr),
    *(torch.Tensor.untyped_storage, torch.Tensor.storage, torch.Tensor.__dlpack__),
    torch.Tensor.grad_fn.__get__,  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]  # a descriptor
    torch.Tensor.data.__set__,  # pyright: ignore[reportAttributeAccessIssue]  # as above
)
"""Functions that reach past the operations, for memory or for what computes gradients."""

_MARKING = ("__set__", ".requires_grad_", ".retain_grad", ".detach_", ".share_memory_")
"""How functions end that mark a tensor itself."""


def _is_users(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not isinstance(value, StandIn)


def _labels_of(tensor: torch.Tensor) -> list[tuple[str, Any]]:
    """Names of a SambaTensor, and others that its user has given it."""
    return sorted((k, v) for k, v in vars(tensor).items() if isinstance(v, _PLAIN))


def _form(meta: torch.Tensor) -> tuple[Any, ...]:
    """Everything that a result's form can depend on."""
    conjugates = meta.is_conj(), meta.is_neg()
    return meta.shape, meta.stride(), meta.storage_offset(), meta.dtype, meta.layout, conjugates


def _made_again(result: Any) -> Any:
    """New tensors of the form of others, which stay as they are."""
    if isinstance(result, torch.Tensor) and result.is_meta and result.layout is torch.strided:
        size, strides = result.shape, result.stride()
        return torch.empty_strided(size, strides, dtype=result.dtype, device=META)
    if isinstance(result, (list, tuple)):
        return type(result)(_made_again(item) for item in result)
    return result


def _makes_tensors(func: OpOverload) -> bool:
    """Whether an operation takes a device and no tensor."""
    arguments = arguments_of(func)
    return any(a.name == "device" for a in arguments) and not any(
        "Tensor" in str(a.type) for a in arguments
    )


def _returns(func: OpOverload, *, write: bool) -> bool:
    """Whether an operation returns memory of its arguments: written by it, or only seen."""
    return any(
        r.alias_info is not None and r.alias_info.is_write == write for r in returns_of(func)
    )


def _written(func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
    """The tensors that an operation writes, in the order of its arguments."""
    arguments = arguments_of(func)
    values = dict(zip((a.name for a in arguments), args, strict=False)) | dict(kwargs)
    return [
        tensor
        for a in arguments
        if a.alias_info is not None and a.alias_info.is_write
        for tensor in tree_leaves(values.get(a.name))
        if isinstance(tensor, torch.Tensor)
    ]


def _shown(value: Any) -> str:
    """The arguments of a function, except tensors, which the operations in it name."""
    if isinstance(value, torch.Tensor):
        return "tensor"
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return f"[{' '.join(map(_shown, value))}]"
    return type(value).__qualname__
