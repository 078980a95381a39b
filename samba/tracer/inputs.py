"""Trace-time inputs in all the shapes that applications pass them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from pef_schema.errors import SambaError
from samba.support.naming import root_name
from samba.support.nesting import Constant, leaves
from samba.tensor.views import foreign_layout
from samba.tracer.errors import UnsupportedOp, UnsupportedOps
from samba.tracer.torch_internals import tree_map


class InputError(SambaError):
    """The inputs given for tracing do not fit ``forward``."""

    def __init__(self, *, found: str, wanted: str) -> None:
        self.found, self.wanted = found, wanted
        super().__init__(
            f"inputs for tracing: found {found:.1000}; expected {wanted}. "
            "Pass the tensors that forward() takes, in its order, or a dict of keyword arguments."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a tensor lies in memory, as far as ``forward`` asks.

    Args:
        strides: In elements; 0 along axes of one element, where they say nothing.
        offset: Its place in its storage, 0 if ``forward`` does not ask.
        asks_offset: Whether it asks.
        line: The user's lines that ask.
    """

    strides: tuple[int, ...]
    offset: int = 0
    asks_offset: bool = False
    line: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewCheck:
    """Whom to ask whether torch takes the views that ``forward`` has of an input.

    Args:
        place: Of the input among those of its trace.
        refuse: Takes tensors by their places; raises if torch refuses views of inputs that lie so.
    """

    place: int
    refuse: Callable[[Mapping[int, torch.Tensor]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedInput:
    """One tensor argument of ``forward`` with the name it is matched by.

    ``given_name`` is that of the tensor, from which ``name`` differs where an earlier input has it,
    ``argument`` its name in ``forward``, ``place`` its position among all arguments that were
    given, those that are None included.
    """

    name: str
    given_name: str
    argument: str
    place: int
    region_name: str
    tensor: torch.Tensor
    requires_grad: bool
    layout: Layout | None = None
    """How it has to lie, where ``forward`` asks for that."""
    views: ViewCheck | None = None
    """Whom to ask how it may lie, where ``forward`` has views of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceInputs:
    """Arguments for ``torch.export`` and the names of their tensors, in order.

    ``constants`` are the keyword arguments that are not tensors: they become part of the graph.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    tensors: tuple[NamedInput, ...]
    constants: tuple[tuple[str, Constant], ...] = ()

    def call_with(self, tensors: Iterable[torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments for an eager call of ``forward``.

        Args:
            tensors: One for each of ``self.tensors``, in their order.

        Returns:
            Positional arguments and keywords, containers, constants and None as they were given.
        """
        rest = iter(tensors)

        def fill(leaf: Any) -> Any:
            return next(rest) if isinstance(leaf, torch.Tensor) else leaf

        return tree_map(fill, self.args), tree_map(fill, self.kwargs)


def collect_inputs(model: torch.nn.Module, inputs: Any) -> TraceInputs:
    """Bring trace-time inputs into the form ``torch.export`` takes.

    Args:
        model: The model whose ``forward`` names unnamed inputs.
        inputs: A tensor, a tuple or list of tensors and None, or a dict by argument name, in any
            order, in which numbers, bools and strings are constants of the graph. An argument
            may be a list, tuple or dict of tensors itself, such as the caches of layers.

    Returns:
        Plain tensors with the names of the originals, in the order of ``forward``.

    Raises:
        InputError: If something other than tensors and None is found.
        UnsupportedOps: If a tensor is sparse, nested or quantized.
    """
    parameters = [
        p.name
        for p in inspect.signature(model.forward).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    if isinstance(inputs, torch.Tensor):
        inputs = (inputs,)
    if isinstance(inputs, Mapping):
        unknown = [k for k in inputs if k not in parameters]
        if unknown and not _takes_any_keyword(model):
            raise InputError(found=f"keyword(s) {unknown}", wanted=f"some of {parameters}")
        order = {name: place for place, name in enumerate(parameters)}
        last = len(order)
        pairs = sorted(inputs.items(), key=lambda item: (order.get(item[0], last), item[0]))
    elif isinstance(inputs, (tuple, list)):
        _refuse_by_position(model, len(inputs))
        names = parameters + [f"input_{i}" for i in range(len(parameters), len(inputs))]
        pairs = list(zip(names, inputs, strict=False))
    else:
        raise InputError(found=type(inputs).__name__, wanted="a tensor, tuple, list or dict")
    flat = [leaf for key, value in pairs for leaf in leaves(key, value)]
    constants: tuple[tuple[str, Constant], ...] = ()
    if isinstance(inputs, Mapping):
        constants = tuple((k, v) for k, v in flat if isinstance(v, Constant))
        flat = [(k, v) for k, v in flat if not isinstance(v, Constant)]
    bad = [f"{k}: {type(v).__name__}" for k, v in flat if not _is_tensor_or_none(v)]
    if bad:
        raise InputError(found=", ".join(bad), wanted="tensors or None")
    _refuse_foreign(root_name(model), [(k, v) for k, v in flat if v is not None])
    named: list[NamedInput] = []
    used: set[str] = set()
    for place, (argument, tensor) in enumerate(flat):
        if tensor is None:
            continue
        original = name = getattr(tensor, "sn_name", "") or argument
        if name in used:
            suffix = next(i for i in range(1, len(flat) + 1) if f"{name}_{i}" not in used)
            name = f"{name}_{suffix}"
        used.add(name)
        region = getattr(tensor, "sn_region_name", "") or name
        if region == original:
            region = name  # two inputs of one name are two inputs
        named.append(
            NamedInput(
                name=name,
                given_name=original,
                argument=argument,
                place=place,
                region_name=region,
                tensor=tensor,
                requires_grad=bool(tensor.requires_grad),
            )
        )
    plain = [(key, _stand_in(value)) for key, value in pairs]
    args, kwargs = ((), dict(plain)) if isinstance(inputs, Mapping) else ([v for _, v in plain], {})
    try:
        inspect.signature(model.forward).bind(*args, **kwargs)
    except TypeError as error:
        wanted = f"those of forward({', '.join(parameters)})"
        raise InputError(found=f"{len(pairs)} input(s): {error}", wanted=wanted) from None
    return TraceInputs(args=tuple(args), kwargs=kwargs, tensors=tuple(named), constants=constants)


def foreign_reason(tensor: torch.Tensor) -> str:
    """Why a tensor is not one block of plain numbers; empty if it is."""
    kind = foreign_layout(tensor)
    return f"{kind} tensors are not supported" if kind else ""


def _refuse_foreign(model: str, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    bad = [
        UnsupportedOp(name=f"input {name}", count=1, lines=(), reason=reason)
        for name, tensor in tensors
        if (reason := foreign_reason(tensor))
    ]
    if bad:
        raise UnsupportedOps(model=model, ops=bad)


def _refuse_by_position(model: torch.nn.Module, count: int) -> None:
    """Refuse more inputs by position than ``forward`` takes so, if it takes others by name."""
    parameters = inspect.signature(model.forward).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    named = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    if named and count > len(places):
        raise InputError(
            found=f"{count} inputs by position",
            wanted=f"a dict, as forward() takes {', '.join(named)} by name only"
            + (f" and {len(places)} by position" if places else ""),
        )


def _takes_any_keyword(model: torch.nn.Module) -> bool:
    parameters = inspect.signature(model.forward).parameters.values()
    return any(p.kind is p.VAR_KEYWORD for p in parameters)


def _is_tensor_or_none(value: Any) -> bool:
    return value is None or isinstance(value, torch.Tensor)


def _stand_in(value: Any) -> Any:
    """Plain tensors of the same shapes and dtypes, unwritten: their pages are never touched.

    Whether they require a gradient decides what ``forward`` sees, and a function's ``backward``.
    """
    if isinstance(value, Mapping):
        return {key: _stand_in(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        items = [_stand_in(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if value is None or isinstance(value, Constant):
        return value
    empty = torch.empty(tuple(value.shape), dtype=value.dtype, device="cpu")
    return empty.requires_grad_(bool(value.requires_grad))
