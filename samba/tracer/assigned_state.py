"""What ``forward`` assigns to parameters and buffers: written into them, or refused.

Torch keeps for the next call what ``forward`` assigns. A program has the buffers that the model had
when it was compiled: a tensor that one of them is exchanged for, of the same shape and type, is
written into it when ``forward`` has returned, in whatever module it is. The rest of what may be
assigned (another shape, a first value, another parameter) has no place in a program. It is refused,
unless the next call gives the same graph all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from samba.support.marks import marked
from samba.tracer.backward_passes import changes_state
from samba.tracer.changed_state import ChangedAttributes, TraceState, assigned_line
from samba.tracer.containers import Change
from samba.tracer.data_dependent.known_values import KnownValues
from samba.tracer.torch_internals import (
    buffers_of,
    node_of,
    outside_of_trace,
    parameters_of,
    storage_of,
    tree_map,
    versions_of,
)
from samba.tracer.torch_patches import uncounted_changes, unfollowed_assignments, with_call
from samba.tracer.user_code import SOURCE

T = torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Assigned:
    """A parameter or a buffer that is another tensor than before.

    Args:
        path: Where it is, from the model on.
        owner: The class of its module.
        table: The parameters or buffers of its module.
        name: Its name there.
        old, new: What was there and is now; None for nothing.
        is_gone: Whether it has no entry any more.
    """

    path: str
    owner: type
    table: dict[str, Any]
    name: str
    old: T | None
    new: T | None
    is_gone: bool

    @property
    def is_written(self) -> bool:
        """Whether a program can write it: into a buffer of the same shape and type."""
        old, new = self.old, self.new
        if old is None or new is None or isinstance(new, torch.nn.Parameter):
            return False
        return (old.shape, old.dtype, old.layout) == (new.shape, new.dtype, new.layout)

    @property
    def is_read_parameter(self) -> bool:
        """Whether it is a parameter that ``forward`` has read before it exchanged it."""
        if not isinstance(self.new, torch.nn.Parameter):
            return False
        node = None if self.old is None else node_of(self.old)
        return node is None or bool(node[0].users)

    def change(self) -> Change:
        """The same, for an error."""
        return Change(
            path=self.path,
            owner=self.owner,
            attribute=self.name,
            before=_text(self.old),
            after=_text(self.new),
            held=True,
        )

    def put(self, value: T | None) -> None:
        """Let it be there for a call that follows the one that has exchanged it.

        Args:
            value: What that call finds.
        """
        if self.is_gone:
            self.table.pop(self.name, None)
        elif isinstance(self.new, torch.nn.Parameter) and value is not None:
            self.table[self.name] = torch.nn.Parameter(value, self.new.requires_grad)
        else:
            self.table[self.name] = value


def _text(tensor: T | None) -> str:
    if tensor is None:
        return "nothing"
    kind = "a parameter" if isinstance(tensor, torch.nn.Parameter) else "a tensor"
    return f"{kind} {list(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Table:
    """The parameters or the buffers of a module, with what they were before a call.

    Args:
        path: The module's path.
        owner: Its class.
        now: The table.
        before: A copy of it.
    """

    path: str
    owner: type
    now: dict[str, Any]
    before: dict[str, Any]

    def assigned(self) -> Iterator[Assigned]:
        """What is another tensor now, or has an entry that it had not."""
        for name in dict.fromkeys((*self.before, *self.now)):
            old, new = self.before.get(name), self.now.get(name)
            if old is not new or (name in self.before) != (name in self.now):
                yield Assigned(
                    path=f"{self.path}.{name}" if self.path else name,
                    owner=self.owner,
                    table=self.now,
                    name=name,
                    old=old,
                    new=new,
                    is_gone=name not in self.now,
                )

    def put_back(self) -> None:
        """Let everything be there again, in its order."""
        same = list(self.now) == list(self.before) and all(
            self.now[name] is tensor for name, tensor in self.before.items()
        )
        if not same:
            self.now.clear()
            self.now.update(self.before)


def _tables(model: torch.nn.Module) -> list[_Table]:
    return [
        _Table(path=path, owner=type(module), now=table, before=dict(table))
        for path, module in model.named_modules()
        for table in (parameters_of(module), buffers_of(module))
    ]


_NOWHERE = ("", "")


def _held(model: torch.nn.Module) -> dict[tuple[str, str], T]:
    """Parameters and buffers by the paths of their modules and their names there."""
    return {
        (path, name): tensor
        for path, module in model.named_modules()
        for table in (parameters_of(module), buffers_of(module))
        for name, tensor in table.items()
        if tensor is not None
    }


class AssignedState:
    """Parameters and buffers of a model that is traced, and what ``forward`` puts in their places.

    Args:
        model: The model.
        known: The values that are the same in every run.
        state: Takes note of what cannot be written.
    """

    def __init__(self, model: torch.nn.Module, known: KnownValues, state: TraceState) -> None:
        self._model, self._known, self._state = model, known, state
        self._is_inside = False
        self._places = {id(tensor): place for place, tensor in _held(model).items()}
        self._stand_ins: dict[tuple[str, str], T] = {}

    def stand_in(self, tensor: T) -> T | None:
        """What stands for a parameter or a buffer while ``forward`` is traced.

        Code may have another way to one of them than the model's own: a list, a closure, a partial.

        Args:
            tensor: A tensor with values.

        Returns:
            None if it is none of the model.
        """
        return self._stand_ins.get(self._places.get(id(tensor), _NOWHERE))

    @contextmanager
    def written(self) -> Iterator[None]:
        """While active, a call of the model writes what ``forward`` assigns.

        Raises:
            ChangedAttributes: From a call, if a program has no place for it.
        """
        with unfollowed_assignments(), with_call(self._model, self._call):
            yield

    def _call(self, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call the model; the outermost call ends with the writes."""
        if self._is_inside:
            return own(*args, **kwargs)
        tables, self._stand_ins = _tables(self._model), _held(self._model)
        self._known.begin()
        held = [t for table in tables for t in table.before.values() if t is not None]
        versions = versions_of(held)
        self._is_inside = True
        try:
            result = own(*args, **kwargs)
            exchanged = [entry for table in tables for entry in table.assigned()]
            assigned = [entry for entry in exchanged if not self._is_the_same(entry)]
            if not assigned:
                return result
            counts = zip(held, versions or (), versions_of(held) or (), strict=False)
            changed = {id(tensor) for tensor, before, now in counts if before != now}
            self._refuse_shared(assigned, held, changed)
            self._state.exchanged = [
                (entry, self._value(entry)) for entry in assigned if not entry.is_written
            ]
            return _write([entry for entry in assigned if entry.is_written], result)
        finally:
            self._is_inside, self._stand_ins = False, {}
            for table in tables:
                table.put_back()

    def _refuse_shared(
        self, assigned: Sequence[Assigned], held: Sequence[T], changed: set[int]
    ) -> None:
        """Raise if what is assigned shares memory that changes with what stays in the model."""
        gone = {id(entry.old) for entry in assigned}
        memory = {
            storage_of(tensor)
            for tensor in held
            if id(tensor) not in gone and (id(tensor) in changed or _is_trained(tensor))
        }
        lost = [
            entry
            for entry in assigned
            if entry.is_read_parameter
            or (entry.new is not None and storage_of(entry.new) in memory)
        ]
        if lost:
            changes = [entry.change() for entry in lost]
            raise ChangedAttributes(self._model, changes, "", what="later calls find them")

    def _is_the_same(self, entry: Assigned) -> bool:
        """Whether a buffer is given the values that it has, in every run."""
        if not entry.is_written or entry.old is None or entry.new is None:
            return False
        value = self._known.of(entry.new, counts=False)
        before = None if value is None else self._known.of(entry.old, counts=False)
        return value is not None and before is not None and torch.equal(value, before)

    def _value(self, entry: Assigned) -> T | None:
        """What a later call finds; some number where that depends on data."""
        if entry.new is None:
            return None
        known = self._known.of(entry.new, counts=False)
        if known is not None:
            return known
        with outside_of_trace():
            return some_numbers(entry.new)


def some_numbers(tensor: T) -> T:
    """A tensor with values, which stands for one whose values depend on data.

    Args:
        tensor: The tensor, perhaps without values.
    """
    shape, dtype = tuple(tensor.shape), tensor.dtype
    return torch.full(shape, 0.7310586 if dtype.is_floating_point else 1, dtype=dtype)


def _is_trained(tensor: T) -> bool:
    return tensor.requires_grad and torch.is_grad_enabled()


def _write(writes: Sequence[Assigned], result: Any) -> Any:
    """Write what buffers are exchanged for; what shows an old one shows its old values.

    Torch's buffers are others from then on, and nothing of the old ones changes: neither what is
    assigned elsewhere, nor what is returned, nor what gradients read.
    """
    olds = [entry.old for entry in writes if entry.old is not None]
    memory = {storage_of(old) for old in olds}

    def apart(leaf: Any) -> Any:
        shows = isinstance(leaf, T) and storage_of(leaf) in memory
        return leaf.clone() if shows else leaf

    result, values = tree_map(apart, (result, [entry.new for entry in writes]))
    with uncounted_changes(olds):
        for entry, old, value in zip(writes, olds, values, strict=True):
            with marked(SOURCE, assigned_line(entry.owner, entry.name)):
                old.copy_(value)
    return result


@contextmanager
def put_back(
    model: torch.nn.Module, exchanged: Iterable[tuple[Assigned, T | None]] = ()
) -> Iterator[None]:
    """Afterwards a model has the parameters and buffers that it has now.

    Args:
        model: The model.
        exchanged: What is there meanwhile, as earlier calls have left it.
    """
    tables = _tables(model)
    try:
        for entry, value in exchanged:
            entry.put(value)
        yield
    finally:
        for table in tables:
            table.put_back()


@contextmanager
def behind_forward(model: torch.nn.Module, state: TraceState) -> Iterator[None]:
    """While active, backward passes run in the state that ``forward`` has left.

    Args:
        model: The model.
        state: What puts that state in place.

    Raises:
        GradientError: If one of them assigns a buffer.
    """
    tables = _tables(model)
    with state.left(), put_back(model):
        yield
        names = [entry.path for table in tables for entry in table.assigned()]
        if names:
            what = f"a backward pass or a hook assigns {', '.join(names)}"
            raise changes_state(f"model {type(model).__name__}", what)
