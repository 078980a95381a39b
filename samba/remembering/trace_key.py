"""What a trace depends on, as one digest that other processes find again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch

from samba.remembering.code_origins import has_script, installed, own_version, sources
from samba.remembering.forward_call import forward_digest
from samba.remembering.stand_ins import Incomparable, memory_of
from samba.tensor.views import host_of, strides_of
from samba.tracer.inputs import TraceInputs
from samba.tracer.torch_internals import (
    accumulation_hooks,
    buffers_of,
    global_hooks,
    gradient_hooks,
    hook_tables_of,
    parameters_of,
    tree_flatten,
)
from samba.tracer.trace_cache import torch_settings


def trace_key(model: torch.nn.Module, given: TraceInputs, *, inference: bool) -> str:
    """A digest of what the trace of a model depends on.

    It covers the texts of the user's modules that are loaded, the versions of all others, torch's
    settings, the form of the inputs and of the model, and what a call of ``forward`` does.
    ``docs/decisions/0020-remembered-traces.md`` says what it cannot cover.

    Args:
        model: The model.
        given: The inputs of the trace.
        inference: The mode of the trace.

    Returns:
        Hexadecimal digits.

    Raises:
        Incomparable: If something of it cannot be compared between processes.
        Exception: What ``forward`` raises.
    """
    if not has_script():
        raise Incomparable("__main__", "has no source file")
    _refuse_backward_hooks(model)
    places: dict[Any, int] = {}
    form = _form_of(model, places), _form_of_inputs(given, places)
    done = forward_digest(model, given, inference=inference)
    texts = sources()  # with modules that forward() loads
    if texts is None:
        raise Incomparable("a module of the script", "has a source file that cannot be read")
    parts = (
        *(inference, own_version(), installed(), sorted(texts.items()), torch_settings()),
        *(*form, done, [_names_of(table) for table in global_hooks().values()]),
    )
    return hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()


def _refuse_backward_hooks(model: torch.nn.Module) -> None:
    """Raise if gradients meet code of the user's, which no call of ``forward`` shows."""
    tables = [("all modules", global_hooks())]
    tables += [(path or "model", hook_tables_of(module)) for path, module in model.named_modules()]
    for place, hooks in tables:
        if kinds := [kind for kind, table in hooks.items() if table and "backward" in kind]:
            raise Incomparable(place, f"has {kinds[0]}")
    for path, parameter in model.named_parameters():
        if gradient_hooks(parameter) or accumulation_hooks(parameter):
            raise Incomparable(path, "has a hook on its gradient")


def _form_of(model: torch.nn.Module, places: dict[Any, int]) -> list[Any]:
    """The tree of modules, and names and forms of parameters and buffers."""
    return [
        (
            *(path, type(module).__module__, type(module).__qualname__, module.training),
            [_names_of(table) for table in hook_tables_of(module).values()],
            [
                (name, None if tensor is None else _form(tensor, places))
                for holder in (parameters_of(module), buffers_of(module))
                for name, tensor in holder.items()
            ],
        )
        for path, module in model.named_modules()
    ]


def _names_of(hooks: Mapping[int, Any]) -> tuple[str, ...]:
    """Names and lines of hooks: a call shows what they compute, but a trace tells of them."""
    return tuple([_name_of(hook) for hook in hooks.values()])


def _name_of(hook: Any) -> str:
    line = getattr(getattr(hook, "__code__", None), "co_firstlineno", "")
    return f"{getattr(hook, '__qualname__', type(hook).__qualname__)} {line}"


def _form(tensor: torch.Tensor, places: dict[Any, int]) -> tuple[Any, ...]:
    same = places.setdefault(id(tensor), len(places))
    memory = places.setdefault(("memory", memory_of(tensor) or id(tensor)), len(places))
    names = getattr(tensor, "sn_name", ""), getattr(tensor, "sn_region_name", "")
    own = {key: value for key, value in vars(tensor).items() if not key.startswith("_")}
    lies = strides_of(host_of(tensor)) if getattr(tensor, "_has_data", True) else None
    form = tuple(tensor.shape), tensor.dtype, str(tensor.device), tensor.requires_grad
    return *form, type(tensor).__qualname__, lies, names, repr(sorted(own.items())), same, memory


def _form_of_inputs(given: TraceInputs, places: dict[Any, int]) -> list[Any]:
    leaves, spec = tree_flatten((given.args, given.kwargs))
    others = [repr(leaf) for leaf in leaves if not isinstance(leaf, torch.Tensor)]
    tensors = [
        (
            *(entry.name, entry.given_name, entry.argument, entry.place, entry.region_name),
            *(entry.requires_grad, _form(entry.tensor, places)),
        )
        for entry in given.tensors
    ]
    return [str(spec), others, given.constants, tensors]
