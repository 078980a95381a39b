"""Operations on lazy parameters: in-place ones go into the recipe, views know their place in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import torch

from samba.tensor.empty import empty_with
from samba.tensor.labels import keep_names
from samba.tensor.recipe import (
    SELF,
    Function,
    Recipe,
    RecordedCall,
    SameAs,
    StridedView,
    T,
    ViewRecipe,
)

S = TypeVar("S", bound=torch.Tensor)

RESHAPES = frozenset(
    {"resize_", "resize_as_", "set_", "squeeze_", "t_", "transpose_", "unsqueeze_"}
)
"""In-place functions that change the shape: no recipe tells of them."""

_OPERATORS = frozenset(
    f"__i{name}__"
    for name in (
        *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"),
        *("and", "or", "xor", "lshift", "rshift"),
    )
)


def record(
    cls: type[T], func: Function, tensor: T, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Records a torch function on an empty tensor whose values have a recipe.

    Args:
        cls: The SambaTensor class.
        func: The function.
        tensor: The empty tensor, one of its arguments.
        args, kwargs: All of its arguments.

    Returns:
        What the function returns: the tensor after an in-place operation, an empty view after a
        view function, and NotImplemented for any other function.
    """
    recipe = vars(tensor)["_materializer"]
    name = getattr(func, "__name__", "")
    target = args[0] if args else kwargs.get("tensor", kwargs.get("input"))
    if target is not tensor or name in RESHAPES:
        return NotImplemented
    if not _is_in_place(name):
        return _view(cls, func, recipe, args, kwargs)
    root, view = _parts(recipe)
    call = RecordedCall(
        view=view,
        function=func,
        args=tuple(_stored(a, tensor) for a in args),
        kwargs={k: _stored(a, tensor) for k, a in kwargs.items()},
    )
    _try(call, root)
    root.record(call)
    return None if name == "__setitem__" else tensor


def _parts(recipe: Recipe | ViewRecipe) -> tuple[Recipe, StridedView | None]:
    return (recipe, None) if isinstance(recipe, Recipe) else (recipe.recipe, recipe.view)


def writes(func: Function, kwargs: Mapping[str, Any]) -> bool:
    """Whether a function changes one of its arguments, as far as its name tells."""
    return _is_in_place(getattr(func, "__name__", "")) or kwargs.get("out") is not None


def _is_in_place(name: str) -> bool:
    trailing = name.endswith("_") and not name.endswith("__")
    return trailing or name == "__setitem__" or name in _OPERATORS


def _stored(arg: Any, target: T) -> Any:
    """An argument as a recipe keeps it: tensors as they are now, not as they will be."""
    if arg is target:
        return SELF
    if isinstance(arg, T):
        plain = arg.torch_tensor() if hasattr(arg, "torch_tensor") else arg  # pyright: ignore[reportAttributeAccessIssue]  # SambaTensor
        return plain.detach().clone()
    return type(arg)(_stored(a, target) for a in arg) if type(arg) in (list, tuple) else arg


def _try(call: RecordedCall, recipe: Recipe) -> None:
    """Tries a call on a tensor without memory: what torch refuses is refused now, not later."""

    def there(arg: Any) -> Any:
        return arg.to("meta") if isinstance(arg, T) and arg.dim() else arg

    trial = RecordedCall(
        view=call.view,
        function=call.function,
        args=tuple(there(a) for a in call.args),
        kwargs={k: there(a) for k, a in call.kwargs.items()},
    )
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        try:
            trial.run(_probe(recipe))
        except NotImplementedError:  # torch cannot say without memory
            return


def _probe(recipe: Recipe) -> T:
    return torch.empty(recipe.shape, dtype=recipe.dtype, device="meta")


def _view(
    cls: type[T],
    func: Function,
    recipe: Recipe | ViewRecipe,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    root, view = _parts(recipe)
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        whole = _probe(root)
        try:
            probe = whole if view is None else view.of(whole)
            result = func(probe, *args[1:], **kwargs)
        except (RuntimeError, TypeError):  # not for tensors without memory, so not a view
            return NotImplemented
    results = result if isinstance(result, (tuple, list)) else (result,)
    if not results or not all(isinstance(r, T) and r._base is whole for r in results):
        return NotImplemented
    if any(item.dtype != root.dtype for item in results):
        return NotImplemented
    views = []
    for item in results:
        shape = tuple(item.shape)
        part = StridedView(shape=shape, strides=item.stride(), offset=int(item.storage_offset()))
        views.append(empty_with(cls, shape, args[0].dtype, ViewRecipe(root, part)))
    return views[0] if results[0] is result else type(result)(views)


def alias(cls: type[S], tensor: T) -> S:
    """An empty tensor of the same memory: what ``.data`` of an empty tensor is."""
    recipe = vars(tensor).get("_materializer")
    recipe = recipe.alias() if isinstance(recipe, (Recipe, ViewRecipe)) else SameAs(tensor)
    result = empty_with(cls, tuple(tensor.shape), tensor.dtype, recipe)
    keep_names(tensor, result)
    return result
