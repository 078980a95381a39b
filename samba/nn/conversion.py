"""From torch to samba and back: whole models in place, single tensors by sharing memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import nn

from samba.errors import ConversionError
from samba.nn.converted import converted_buffers, note_converted
from samba.nn.parameter import SambaParameter
from samba.sambatensor import SambaTensor, from_torch_tensor, to_torch
from samba.support.given import text_of
from samba.support.naming import join_name, name_modules, root_name

__all__ = [
    "from_named_dict",
    "from_torch",
    "from_torch_",
    "from_torch_model",
    "from_torch_model_",
    "patched_torch",
    "to_torch_tensor",
]

Model = TypeVar("Model", bound=nn.Module)
"""A model, which stays the object that it is."""


def from_torch_model_(model: Model, parent_module_prefix: str | None = None) -> Model:
    """Makes the parameters of a model SambaParameters, in place, and names everything in it.

    Parameters stay the same objects, so optimizers and ties made before still hold; a tied
    parameter has the first of its names. Buffers stay torch tensors; SambaTensors that share
    their memory are put in ``samba.session.buffer_dict`` by name. A second call gives the same
    result, and repairs names and buffers after ``model.bfloat16()`` and the like.

    Parameters on the meta device have no memory to share: they are replaced by empty
    SambaParameters.

    Args:
        model: The model.
        parent_module_prefix: Put before every name, for models that are converted in parts.

    Returns:
        The model.

    Raises:
        ConversionError: ``model`` is not a module, or a parameter is of a kind that cannot be
            converted; nothing is changed then.

    Example:
        >>> model = from_torch_model_(nn.Linear(10, 10))
        >>> model.name, model.weight.sn_name
        ('linear', 'linear__weight')
    """
    if not isinstance(model, nn.Module):
        raise ConversionError(
            where="samba.from_torch_model_(model)",
            found=type(model).__name__,
            wanted="a torch.nn.Module",
            hint="Tensors are converted with samba.from_torch_tensor(...).",
        )
    if parent_module_prefix is not None:
        text_of(parent_module_prefix, "samba.from_torch_model_(parent_module_prefix=...)")
    root = root_name(model, parent_module_prefix)
    for path, parameter in model.named_parameters():
        _check(join_name(root, path), parameter)
    name_modules(model, root)
    _replace_meta(model)
    for path, parameter in model.named_parameters():
        parameter.__class__ = SambaParameter
        parameter.sn_name = join_name(root, path)  # pyright: ignore[reportAttributeAccessIssue]  # the class was assigned above
    buffers = converted_buffers()
    for path, buffer in model.named_buffers():
        name = join_name(root, path)
        buffers[name] = from_torch_tensor(buffer, name=name)
    note_converted(model)
    return model


def _check(name: str, parameter: nn.Parameter) -> None:
    plain = type(parameter) in (nn.Parameter, SambaParameter)
    wrapped = isinstance(parameter, SambaTensor) and isinstance(parameter, nn.Parameter)
    if not plain and not wrapped:
        raise ConversionError(
            where=f"samba.from_torch_model_(model), parameter {name}",
            found=type(parameter).__name__,
            wanted="a torch.nn.Parameter",
            hint="Lazy layers need one forward pass before the conversion.",
        )


def _replace_meta(model: nn.Module) -> None:
    """Puts empty parameters in the place of those on the meta device, keeping ties."""
    replaced: dict[int, SambaParameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is None or not parameter.is_meta:
                continue
            if id(parameter) not in replaced:
                replaced[id(parameter)] = SambaParameter(
                    shape=parameter.shape,
                    dtype=parameter.dtype,
                    requires_grad=parameter.requires_grad,
                )
            module._parameters[name] = replaced[id(parameter)]


from_torch_model = from_torch_ = from_torch_model_
"""Older names of :func:`from_torch_model_`; they work in place too."""


def from_torch(obj: Any, *args: Any, **kwargs: Any) -> Any:
    """Older name of :func:`from_torch_tensor` for tensors, and of :func:`from_torch_model_` for
    modules."""
    if isinstance(obj, nn.Module):
        return from_torch_model_(obj, *args, **kwargs)
    return from_torch_tensor(obj, *args, **kwargs)


to_torch_tensor = to_torch
"""Older name of :func:`to_torch`."""


def from_named_dict(tensors: Mapping[str, torch.Tensor | None]) -> dict[str, SambaTensor | None]:
    """Makes SambaTensors named by their keys, which ``samba.session.run`` takes as inputs.

    Args:
        tensors: Tensors by name. A SambaTensor is shared under the new name, not renamed.

    Returns:
        SambaTensors under the same keys, in the same order; None stays None.

    Example:
        >>> inputs = from_named_dict({"image": torch.zeros(2, 3)})
        >>> inputs["image"].sn_name
        'image'
    """
    return {key: _named(key, tensor) for key, tensor in tensors.items()}


def _named(name: str, tensor: torch.Tensor | None) -> SambaTensor | None:
    if isinstance(tensor, SambaTensor):
        if tensor.sn_name == name:
            return tensor
        return SambaTensor(tensor, name=name)
    return from_torch_tensor(tensor, name=name)


@contextmanager
def patched_torch() -> Iterator[None]:
    """Runs a converted model on the CPU as its own reference.

    Eager calls are plain torch anyway, so nothing is patched.
    """
    yield
