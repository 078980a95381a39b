"""Results of forward, brought into the form that ``torch.export`` takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from samba.support.deviations import tell
from samba.tracer.torch_internals import (
    is_container_without_names,
    keystr,
    known_containers,
    parts_of,
    tree_flatten,
    tree_flatten_with_path,
    tree_unflatten,
)

_PLAIN = (torch.Tensor, bool, int, float, str, type(None))


@contextmanager
def plain_outputs(model: torch.nn.Module) -> Iterator[None]:
    """While active, ``model`` returns what a graph can: containers of tensors.

    A plain dataclass becomes a dict of its fields, as does a container whose parts torch can take
    out but not name. An object beside tensors that holds
    none that torch knows of, such as the key-value cache of a language model, becomes None;
    the log names it. A result that is nothing but such an object stays, for the error.

    Args:
        model: The model; a hook on it is added and removed.
    """

    def hook(module: torch.nn.Module, args: Any, result: Any) -> Any:
        return _plain(result)

    handle = model.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def _plain(result: Any) -> Any:
    result = _named_parts(_as_dict(result))
    leaves, spec = tree_flatten_with_path(result, is_leaf=_is_dataclass)
    foreign = [(path, leaf) for path, leaf in leaves if path and not isinstance(leaf, _PLAIN)]
    if not foreign:
        return result
    kept: list[Any] = []
    for path, leaf in leaves:
        if path and _is_dataclass(leaf):
            kept.append(_plain(leaf))
        elif path and not isinstance(leaf, _PLAIN):
            tell(
                "output-no-tensor",
                f"forward() returns {keystr(path)} ({type(leaf).__name__}), which is no tensor: it "
                "is left out",
            )
            kept.append(None)
        else:
            kept.append(leaf)
    return tree_unflatten(kept, spec)


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
