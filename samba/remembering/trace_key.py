"""What a trace depends on, as one digest that other processes find again."""

from __future__ import annotations

import torch

from samba.remembering.code_origins import installed, own_version, sources
from samba.remembering.state_digest import Incomparable, StateDigest
from samba.tensor.views import host_of, strides_of
from samba.tracer.inputs import TraceInputs
from samba.tracer.torch_internals import buffers_of, global_hooks, parameters_of, tree_flatten
from samba.tracer.trace_cache import torch_settings

__all__ = ["trace_key"]

_PATCHED = ("torch", "torch.nn.functional", "torch.nn", "torch.linalg", "torch.special")
"""Modules that ``forward`` reaches in ways that name none of them."""


def trace_key(model: torch.nn.Module, given: TraceInputs, *, inference: bool) -> str:
    """A digest of what the trace of a model depends on.

    It has the texts of the user's modules that are loaded, the versions of all others, torch's
    settings, the form of the inputs, and the state of the model with all that its code names.
    ``docs/decisions/0020-remembered-traces.md`` says what it cannot have.

    Args:
        model: The model.
        given: The inputs of the trace.
        inference: The mode of the trace.

    Returns:
        Hexadecimal digits.

    Raises:
        Incomparable: If something of it cannot be compared between processes.
        Exception: What an object of the user's raises when it is looked at.
    """
    texts = sources()
    if texts is None:
        raise Incomparable("__main__", "or another module of the script has no source file")
    known: dict[int, str] = {}
    for path, module in model.named_modules():
        for name, tensor in (*parameters_of(module).items(), *buffers_of(module).items()):
            if tensor is not None:
                known.setdefault(id(tensor), f"{path}.{name}")
    state = StateDigest(known)
    try:
        state.add((inference, own_version(), installed()), "the versions")
        state.add(texts, "the sources")
        state.add(torch_settings(), "torch's settings")
        for kind, hooks in global_hooks().items():
            state.add(dict(hooks), kind)
        _add_inputs(state, given)
        for name in _PATCHED:
            state.add_patches(name)
        for kind in (torch.Tensor, torch.nn.Module):
            state.add(kind, kind.__qualname__)
        state.add(model, "model")
    except RecursionError:
        raise Incomparable("model", "is nested too deeply") from None
    return state.hexdigest()


def _add_inputs(state: StateDigest, given: TraceInputs) -> None:
    leaves, spec = tree_flatten((given.args, given.kwargs))
    others = [leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)]
    state.add((str(spec), others, given.constants), "the inputs")
    places: dict[int, int] = {}
    for entry in given.tensors:
        same = places.setdefault(id(entry.tensor), len(places))
        form = tuple(entry.tensor.shape), entry.tensor.dtype, entry.requires_grad
        names = entry.name, entry.given_name, entry.argument, entry.place, entry.region_name
        lies = None
        if getattr(entry.tensor, "_has_data", True):
            lies = strides_of(host_of(entry.tensor))
        held = {k: v for k, v in vars(entry.tensor).items() if not k.startswith("_")}
        state.add((form, names, lies, same, held), entry.name)
