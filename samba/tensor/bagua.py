"""BaguaTensor: a tensor by whose name replicas communicate it, or another in its place.

The *proxy* is the tensor that was registered. The *effective tensor* is what its getter closure
returns, and what the backend communicates; it is asked for each time, so it may be replaced at
any time. Importing this changes no class of torch: the functions here take any tensor, SambaTensor
has them as methods, and :func:`enable_bagua_tensors` gives them to ``torch.Tensor`` as well, which
``samba.distributed.bagua.torch_api.tensor`` and ``samba.distributed.bagua.install`` call when they
are imported.
"""

from __future__ import annotations

import gc
import threading
from typing import Any, TypeVar

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from samba.errors import ArgumentError, ConversionError, described
from samba.support.given import callable_of, text_of, whole_of
from samba.support.patches import Patches
from samba.tensor.bagua_handle import BackendTensor, Getter, Setter, current_world

T = TypeVar("T", bound=torch.Tensor)

_handles = WeakTensorKeyDictionary()
_lock = threading.RLock()


def handle_of(tensor: torch.Tensor, function: str = "a Bagua function") -> BackendTensor:
    """The handle of a tensor: what the backend knows of it.

    Args:
        tensor: The tensor.
        function: Who asks, for the error.

    Raises:
        ArgumentError: If it is not a Bagua tensor.
    """
    with _lock:
        handle = _handles.get(tensor)
    if handle is None:
        raise ArgumentError(
            where=function,
            found=f"a tensor of shape {tuple(tensor.shape)} that is not a Bagua tensor",
            wanted="a Bagua tensor",
            hint="Call ensure_bagua_tensor on it.",
        )
    return handle


def find_bagua_tensor(name: str, module_name: str | None = None) -> torch.Tensor | None:
    """The tensor that was last registered under a name; None if there is none, or it is gone.

    Args:
        name: Its name.
        module_name: Name of its module.
    """
    tensors = current_world().tensors
    with _lock:
        handle = tensors.get((module_name, name))
    return None if handle is None else handle.living


def is_bagua_tensor(tensor: torch.Tensor) -> bool:
    """Whether a tensor was registered."""
    with _lock:
        return tensor in _handles


def ensure_bagua_tensor(
    tensor: T,
    name: str | None = None,
    module_name: str | None = None,
    getter_closure: Getter | None = None,
    setter_closure: Setter | None = None,
) -> T:
    """Register a tensor as proxy.

    A tensor that is registered with the same closures stays as it is. Without a name it keeps
    the name it had, and without a module too its module.

    Args:
        tensor: The tensor.
        name: Its name, unique in the module.
        module_name: Name of the model; needed to mark the tensor ready.
        getter_closure: Takes the proxy, returns the effective tensor; None for the proxy itself.
        setter_closure: Takes the proxy and a tensor, and makes that the effective tensor; None
            for nothing.

    Returns:
        The tensor itself.

    Raises:
        ArgumentError: If it is registered under another name or in another module, another tensor
            that still exists is registered under the name in the module, or the effective tensor is
            of a type that cannot be communicated.
        ConversionError: If a closure cannot be called.

    Example:
        >>> p = torch.nn.Parameter(torch.ones(2))
        >>> ensure_bagua_tensor(p, "p", getter_closure=lambda p: p.grad) is p
        True
        >>> bagua_getter_closure(bagua_ensure_grad(p))
        tensor([0., 0.])
    """
    where = "ensure_bagua_tensor"
    for what, text in (("name", name), ("module_name", module_name)):
        if text is not None:
            text_of(text, f"{where}({what}=...)", "a string or None")
    for what, closure in (("getter_closure", getter_closure), ("setter_closure", setter_closure)):
        if closure is not None:
            callable_of(closure, f"{where}({what}=...)", "a function or None")
    if name:
        _refuse_taken(name, module_name, tensor)
    return register(tensor, name, module_name, getter_closure, setter_closure)


def register(
    tensor: T,
    name: str | None = None,
    module_name: str | None = None,
    getter_closure: Getter | None = None,
    setter_closure: Setter | None = None,
) -> T:
    """:func:`ensure_bagua_tensor` for algorithms: another tensor's name becomes this one's.

    A model that is made again, or trained by another algorithm, has the names that it had before.
    """
    with _lock:
        old: BackendTensor | None = _handles.get(tensor)
    if old is not None:
        if name is None:
            name, module_name = old.name, module_name or old.module_name
        elif (name, module_name) != (old.name, old.module_name):
            raise ArgumentError(
                where="ensure_bagua_tensor",
                found=f"name {name!r} and module {module_name!r}",
                wanted=f"name {old.name!r} and module {old.module_name!r}, which it has already",
            )
    world = current_world()
    backend = None if module_name is None else world.backend(module_name)
    same = (getter_closure, setter_closure, backend)  # a backend is of a module, and of its ranks
    if old is not None and same == (old.getter, old.setter, old.backend):
        return tensor
    handle = BackendTensor(
        name=name or "",
        module_name=module_name,
        proxy=tensor,
        getter=getter_closure,
        setter=setter_closure,
        backend=backend,
    )
    handle.check()
    with _lock:
        if handle.name:
            world.tensors[module_name, handle.name] = handle
        _handles[tensor] = handle
    return tensor


def _refuse_taken(name: str, module_name: str | None, tensor: torch.Tensor) -> None:
    """Refuse a name that another tensor has, as long as that exists."""
    other = find_bagua_tensor(name, module_name)
    if other is None or other is tensor:
        return
    shape = tuple(other.shape)
    del other
    gc.collect()  # a tensor of a cycle that nobody holds any more keeps no name
    if find_bagua_tensor(name, module_name) is None:
        return
    module = "no module" if module_name is None else f"module {module_name!r}"
    raise ArgumentError(
        where="ensure_bagua_tensor(name=...)",
        found=f"{name!r} in {module}, which another tensor of shape {shape} has",
        wanted="a name that no other tensor of the module has",
    )


def to_bagua_tensor(
    tensor: torch.Tensor,
    name: str | None = None,
    module_name: str | None = None,
    getter_closure: Getter | None = None,
    setter_closure: Setter | None = None,
) -> torch.Tensor:
    """Make a new Bagua tensor that shares a tensor's storage; see :func:`ensure_bagua_tensor`.

    If the tensor moves to another storage later, the new one stays with the old storage.

    Returns:
        The new tensor.
    """
    view = tensor.view(tensor.dtype)
    return ensure_bagua_tensor(view, name, module_name, getter_closure, setter_closure)


def bagua_backend_tensor(tensor: torch.Tensor) -> BackendTensor:
    """The handle of a tensor: what the backend knows of it. The tensor lives as long as it does."""
    return handle_of(tensor, "bagua_backend_tensor").holding()


def bagua_getter_closure(tensor: torch.Tensor) -> torch.Tensor:
    """The effective tensor, as it is now."""
    return handle_of(tensor, "bagua_getter_closure").effective()


def bagua_setter_closure(proxy: torch.Tensor, /, tensor: torch.Tensor) -> None:
    """Make another tensor the effective one; does nothing without a setter closure.

    Args:
        proxy: A Bagua tensor.
        tensor: The other tensor.
    """
    handle = handle_of(proxy, "bagua_setter_closure")
    if not isinstance(tensor, torch.Tensor):
        raise ConversionError(
            where="bagua_setter_closure(tensor)", found=described(tensor), wanted="a tensor"
        )
    handle.replace(tensor)


def bagua_ensure_grad(tensor: T) -> T:
    """Give a parameter a gradient of zeros if it has none.

    Returns:
        The parameter itself.

    Raises:
        NotImplementedError: If it is not a parameter and has no gradient.
    """
    if tensor.is_leaf and tensor.grad is not None:
        return tensor
    if not isinstance(tensor, torch.nn.Parameter):
        raise NotImplementedError(
            f"bagua_ensure_grad: {type(tensor).__name__} of shape {tuple(tensor.shape)} is not a "
            "parameter, and only parameters are given gradients. Call it on an nn.Parameter."
        )
    tensor.grad = torch.zeros_like(tensor.data)
    return tensor


def bagua_mark_communication_ready(tensor: torch.Tensor) -> None:
    """Say that a tensor may be communicated as soon as its values are computed.

    Raises:
        ArgumentError: If it has no module, and so no backend.
        DataParallelError: If no registered bucket has it.
    """
    _mark_ready(handle_of(tensor, "bagua_mark_communication_ready"), wait=True)


def bagua_mark_communication_ready_without_synchronization(tensor: torch.Tensor) -> None:
    """Say that a tensor may be communicated now: its values are there.

    Raises:
        ArgumentError: If it has no module, and so no backend.
        DataParallelError: If no registered bucket has it.
    """
    where = "bagua_mark_communication_ready_without_synchronization"
    _mark_ready(handle_of(tensor, where), wait=False)


def _mark_ready(handle: BackendTensor, *, wait: bool) -> None:
    if handle.backend is None:
        raise ArgumentError(
            where=f"marking Bagua tensor {handle.name!r} ready",
            found="a tensor without a module",
            wanted="one registered with module_name",
        )
    handle.backend.mark_communication_ready(handle, handle.effective if wait else None)


def bagua_set_storage(
    tensor: torch.Tensor, storage: torch.UntypedStorage | Any, storage_offset: int = 0
) -> None:
    """Put the effective tensor into another storage; its values are not copied there.

    It keeps its shape and its strides: numbers are read in the order of its memory format.

    Args:
        tensor: A Bagua tensor.
        storage: The storage.
        storage_offset: Where in it the tensor begins, in elements.

    Raises:
        ConversionError: It is not a storage, or one of elements of another type.
        ArgumentError: The tensor would reach beyond the storage; nothing is changed then.
    """
    handle = handle_of(tensor, "bagua_set_storage")
    effective = handle.effective()
    form = effective.shape, effective.stride()
    storage = _storage_for(effective, storage)
    _refuse_outside(effective, storage, storage_offset)
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        if handle.setter is None:
            effective.set_(storage, storage_offset, *form)
            return
        moved = torch.zeros_like(effective)
        moved.set_(storage, storage_offset, *form)
    handle.replace(moved)


def _storage_for(effective: torch.Tensor, storage: Any) -> torch.UntypedStorage:
    """The bytes of a storage; refuses elements of another type, which would be misread."""
    where = "bagua_set_storage(storage)"
    if isinstance(storage, torch.TypedStorage):
        if storage.dtype != effective.dtype:
            raise ConversionError(
                where=where,
                found=f"a storage of {storage.dtype}",
                wanted=f"a storage of {effective.dtype}, the tensor's dtype, or an UntypedStorage",
                hint="Its bytes would be read as numbers of another type.",
            )
        return storage._untyped_storage
    if not isinstance(storage, torch.UntypedStorage):
        raise ConversionError(where=where, found=described(storage), wanted="a torch.Storage")
    return storage


def _refuse_outside(effective: torch.Tensor, storage: torch.UntypedStorage, offset: int) -> None:
    """Refuse a place in a storage in which a tensor has no room."""
    whole_of(offset, "bagua_set_storage(storage_offset)", least=0)
    if not effective.numel():
        return
    steps = zip(effective.shape, effective.stride(), strict=True)
    last = offset + sum((size - 1) * step for size, step in steps)
    needed = (last + 1) * effective.element_size()
    if needed > storage.nbytes():
        raise ArgumentError(
            where="bagua_set_storage(storage)",
            found=f"a storage of {storage.nbytes()} bytes",
            wanted=f"{needed} bytes or more, for a tensor of shape {tuple(effective.shape)} "
            f"{effective.dtype} from element {offset} on",
        )


class BaguaTensor:
    """The methods that Bagua adds to tensors, as a mixin.

    Example:
        >>> import samba
        >>> t = samba.SambaTensor(torch.ones(3), name="t").ensure_bagua_tensor("t")
        >>> t.is_bagua_tensor(), t.bagua_backend_tensor().num_elements()
        (True, 3)
    """

    is_bagua_tensor = is_bagua_tensor
    ensure_bagua_tensor = ensure_bagua_tensor
    to_bagua_tensor = to_bagua_tensor
    bagua_backend_tensor = bagua_backend_tensor
    bagua_getter_closure = bagua_getter_closure
    bagua_setter_closure = bagua_setter_closure
    bagua_ensure_grad = bagua_ensure_grad
    bagua_mark_communication_ready = bagua_mark_communication_ready
    bagua_mark_communication_ready_without_synchronization = (
        bagua_mark_communication_ready_without_synchronization
    )
    bagua_set_storage = bagua_set_storage

    @property
    def bagua_tensor_name(self: Any) -> str:
        """Name under which the tensor was registered; empty if it has none."""
        return handle_of(self, "bagua_tensor_name").name

    @property
    def bagua_module_name(self: Any) -> str | None:
        """Name of the model it belongs to."""
        return handle_of(self, "bagua_module_name").module_name


_methods = Patches(
    [(torch.Tensor, name, value) for name, value in vars(BaguaTensor).items() if "bagua" in name]
)


def enable_bagua_tensors() -> None:
    """Give ``torch.Tensor`` the methods of :class:`BaguaTensor`, until they are disabled."""
    _methods.apply()


def disable_bagua_tensors() -> None:
    """Take from ``torch.Tensor`` what :func:`enable_bagua_tensors` gave it."""
    _methods.undo()
