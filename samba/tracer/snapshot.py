"""Snapshots of what Python code of a model has beside parameters and buffers.

A snapshot has the attributes of modules, of the objects that these refer to, of the classes of
both, and what their functions read in closures and global variables; lists, dicts and sets among
them entry by entry. It can be compared with a later one and put back, in the same containers.
"""

from __future__ import annotations

import functools
import itertools
import random
import types
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch

from samba.tracer.backward_passes import WatchedHook
from samba.tracer.containers import (
    ARRAYS,
    CACHED,
    COLLECTIONS,
    DRAWING,
    OWN,
    PLAIN,
    WHOLE,
    Change,
    Contents,
    entries_of,
    is_iterator,
    slots_of,
)
from samba.tracer.observed import Place, Watch, concrete, is_observed, observed
from samba.tracer.script_state import (
    functions_of,
    global_state,
    is_held_by_class,
    is_of_user,
    is_script,
    names_in,
)
from samba.tracer.torch_internals import (
    buffers_of,
    global_hooks,
    hooks_of,
    modules_of,
    parameters_of,
)

V = TypeVar("V")

_MIRRORS = frozenset({"_flat_weights", "_flat_weight_refs"})
"""Where torch's recurrent layers list their parameters once more: put back, not reported."""

_READ = (*DRAWING, *COLLECTIONS, *ARRAYS, np.ndarray, ContextVar)
"""What has entries that are looked at."""

_OBSERVED = (*COLLECTIONS, *ARRAYS, itertools.count)
"""What notes that it is read."""

_TRACED = "_call_impl"
"""What a module has while it is traced, for its gradients."""

_MODE = "training"
"""Of the attributes that every module has, the one that ``forward`` itself may change."""

_LONG = 300
"""Characters of a path; the rest of a longer one is left out."""

_MOST = 20_000
"""Containers that are looked into, and entries of one of them: what is beyond is left out."""


class Snapshot:
    """The state of a model's Python code, as it is when this is made.

    Args:
        model: The model.
        hooks: The hooks of its parameters, which have others while it is traced.

    Example:
        >>> class Counter(torch.nn.Module):
        ...     steps = 0
        >>> model = Counter()
        >>> before = Snapshot(model)
        >>> model.steps = 1
        >>> [(c.path, c.before, c.after) for c in before.changes(Snapshot(model))]
        [('steps', '0', '1')]
        >>> before.put_back()
        >>> model.steps
        0
    """

    def __init__(self, model: torch.nn.Module, hooks: Sequence[Callable[..., Any]] = ()) -> None:
        self._contents: list[Contents] = []
        self._waiting: deque[tuple[str, str, Any, Any, bool]] = deque()
        self._namespaces: dict[int, Contents] = {}
        self._seen: set[int] = set(_OF_THE_PROCESS)
        self._code: set[int] = set()
        self.tensors: dict[int, torch.Tensor] = {}
        """Tensors in it by identity."""
        self._outside = False
        modules = [(f"{path}." if path else "", module) for path, module in model.named_modules()]
        self._seen.update(id(module) for _, module in modules)
        for prefix, module in modules:
            self._walk_module(prefix, module)
        for prefix, module in modules:
            self._walk_class(prefix, type(module))
        own = {"gradient hook": dict(enumerate(hooks))}
        self._walk_hooks("", type(model), {**global_hooks(), **own})
        while self._waiting:  # no recursion: a chain of objects may be longer than Python's stack
            *where, self._outside = self._waiting.popleft()
            self._walk(*where)
        self._outside = False

    def changes(self, later: Snapshot, *, only_outside: bool = False) -> list[Change]:
        """Entries that are others in a later state of the same model.

        Args:
            later: The later state.
            only_outside: Whether to leave out what is in the model.
        """
        after = {id(contents.container): contents for contents in later._contents}
        return [
            change
            for contents in self._contents
            if contents.outside or not only_outside
            # If no object has the container any more, the entry that had it has changed itself.
            if (other := after.get(id(contents.container))) is not None
            for change in contents.changes(other)
            if change.attribute not in _MIRRORS
        ]

    def iterators(self) -> list[str]:
        """Paths of iterators in it: what they have given cannot be given back."""
        return [
            contents.named(key)[0]
            for contents in self._contents
            for key, value in contents.entries.items()
            if isinstance(value, Iterator)
        ]

    def values_of(self, kind: type[V]) -> list[V]:
        """All values of a type in it.

        Args:
            kind: The type.
        """
        values = (v for contents in self._contents for v in contents.entries.values())
        return list({id(v): v for v in values if isinstance(v, kind)}.values())

    def put_back(self, *, outside: bool = True) -> None:
        """Give every container the entries that it had.

        Args:
            outside: Whether those too that functions find outside of the model: in global
                variables and closures.
        """
        for contents in self._contents:
            if outside or not contents.outside:
                contents.put_back()

    def forget(self, before: Snapshot, known: Collection[int]) -> None:
        """Take out of containers outside of the model what a trace has left there and knows.

        A tensor of a trace is of no use to another. One that is the same in every run is made
        again there.

        Args:
            before: The state before the trace: entries that it had get their values back.
            known: Identities of the tensors.
        """
        earlier = {id(contents.container): contents.entries for contents in before._contents}
        for contents in self._contents:
            container = contents.container
            gone = [key for key, value in contents.entries.items() if _has(value, known)]
            if not gone or not contents.outside or isinstance(container, types.CellType):
                continue
            if isinstance(container, dict):
                old = earlier.get(id(container), {})
                for key in gone:
                    if key in old and not _has(old[key], known):
                        container[key] = old[key]
                    else:
                        container.pop(key, None)
            elif isinstance(container, CACHED):
                container.cache_clear()
            elif isinstance(container, (list, deque)):
                others = [item for item in container if not _has(item, known)]
                container.clear()
                container.extend(others)

    def with_tensors(self, replace: Callable[[torch.Tensor], torch.Tensor]) -> Snapshot:
        """The same state with other tensors in it, to be put in its place.

        Args:
            replace: Gives a tensor for each that is there.
        """
        return self._mapped(lambda _, value: _replaced(value, replace))

    def unobserved(self) -> Snapshot:
        """The same state, with plain values in place of observed ones."""
        return self._mapped(lambda _, value: concrete(value))

    def observing(
        self, changes: Iterable[Change], watch: Watch
    ) -> tuple[Snapshot, dict[Place, list[torch.Tensor]]]:
        """The same state with observed values in some places, to be put in its place.

        Args:
            changes: Whose places.
            watch: What to tell of reads.

        Returns:
            The state, and those of the places that can be observed, each with the tensors in it:
            whether these are read, only the graph can tell. A bool and None cannot.
        """
        places = {place for change in changes for place in change.places}
        tensors_at: dict[Place, list[torch.Tensor]] = {}
        containers: dict[int, Any] = {}
        for contents in self._contents:
            place = contents.place_of(WHOLE)
            if place in places and isinstance(contents.container, _OBSERVED):
                containers[place[0]] = observed(contents.container, place, watch)

        def within(value: Any) -> Any:
            if type(value) is tuple:
                return tuple(map(within, value))
            container = containers.get(id(value))
            if container is None:
                return value
            tensors_at[id(value), WHOLE] = []
            return container

        def observe(place: Place, value: Any) -> Any:
            if place not in places:
                return within(value)
            stand_in, tensors = observed(value, place, watch), _tensors_of(value)
            if tensors or is_observed(stand_in):
                tensors_at[place] = tensors
            return stand_in

        return self._mapped(observe), tensors_at

    def _mapped(self, of: Callable[[Place, Any], Any]) -> Snapshot:
        """The same state with other values, by their places."""
        mapped = object.__new__(Snapshot)
        mapped._contents = [
            replace(
                c,
                entries={concrete(key): concrete(value) for key, value in c.entries.items()}
                if isinstance(c.container, (set, *DRAWING, *ARRAYS, np.ndarray))
                or is_iterator(c.container)
                else {key: of(c.place_of(key), value) for key, value in c.entries.items()},
            )
            for c in self._contents
        ]
        mapped.tensors = {}
        return mapped

    # -- what is looked into ------------------------------------------------------

    def _walk_module(self, prefix: str, module: torch.nn.Module) -> None:
        apart = parameters_of(module), buffers_of(module)
        entries = {
            key: value
            for key, value in vars(module).items()
            if (key not in OWN or key == _MODE)
            and key != _TRACED
            and not any(value is holder for holder in apart)
        }
        self._take(prefix, type(module), "", vars(module), entries, partial=True)
        parts = modules_of(module)
        self._take(prefix, type(module), "", parts, dict(parts), looks_into=False)
        self._walk_hooks(prefix, type(module), hooks_of(module))

    def _walk_hooks(
        self, prefix: str, owner: Any, kinds: Mapping[str, Mapping[int, Callable[..., Any]]]
    ) -> None:
        for kind, hooks in kinds.items():
            for hook in hooks.values():
                # While it is traced, a hook is within one that watches it.
                own = hook.hook if isinstance(hook, WatchedHook) else hook
                self._walk(f"{prefix}{kind}", "", owner, own)

    def _take(
        self,
        path: str,
        owner: Any,
        attribute: str,
        container: Any,
        entries: dict[Any, Any],
        *,
        partial: bool = False,
        looks_into: bool = True,
    ) -> None:
        """Take a container with its entries, or more of a namespace, and look into these."""
        if len(self._contents) >= _MOST or len(entries) > _MOST:
            return
        contents = self._namespaces.get(id(container)) if partial else None
        if contents is None:
            contents = Contents(
                path=path,
                owner=owner,
                attribute=attribute,
                container=container,
                entries=entries,
                partial=partial,
                outside=self._outside,
            )
            self._contents.append(contents)
            if partial:
                self._namespaces[id(container)] = contents
        else:
            entries = {k: v for k, v in entries.items() if k not in contents.entries}
            contents.entries.update(entries)
        for key, value in entries.items() if looks_into else ():
            where, attribute = contents.named(key)
            where = where if len(where) < _LONG else f"{where[: _LONG // 2]}..."
            self._waiting.append((where, attribute, owner, value, self._outside))

    def _walk(self, path: str, attribute: str, owner: Any, value: Any) -> None:
        value = concrete(value)
        if isinstance(value, torch.Tensor):
            self.tensors[id(value)] = value
            return
        if isinstance(value, PLAIN) or id(value) in self._seen:
            return
        if isinstance(value, tuple):
            for index, item in enumerate(value):
                self._waiting.append((f"{path}[{index}]", attribute, owner, item, self._outside))
            return
        if isinstance(value, types.FunctionType):
            self._walk_function(value)
            return
        self._seen.add(id(value))
        if isinstance(value, _READ) or is_iterator(value):
            entries = entries_of(value)
            if entries is not None:
                looks_into = isinstance(value, (*COLLECTIONS, ContextVar))
                self._take(path, owner, attribute, value, entries, looks_into=looks_into)
        elif isinstance(value, CACHED):
            self._walk_cached(path, attribute, owner, value)
        elif isinstance(value, (types.MethodType, types.BuiltinMethodType, functools.partial)):
            self._walk_bound(path, attribute, owner, value)
        elif isinstance(value, type):
            self._walk_class(f"{value.__name__}.", value)
        else:
            self._walk_object(path, value)

    def _walk_cached(self, path: str, attribute: str, owner: Any, value: Any) -> None:
        """What a function of the user's calls, and the results that it keeps."""
        function = value.__wrapped__
        if isinstance(function, types.FunctionType) and is_script(function):
            self._walk_function(function)
            outer, self._outside = self._outside, True
            self._take(path, owner, attribute, value, entries_of(value) or {})
            self._outside = outer

    def _walk_bound(self, path: str, attribute: str, owner: Any, value: Any) -> None:
        """What a method or a partial application calls, and what it calls that with."""
        for name in ("func", "args", "keywords", "__func__", "__self__"):
            part = getattr(value, name, None)
            if part is not None and not isinstance(part, types.ModuleType):
                self._walk(f"{path}.{name}", attribute, owner, part)

    def _walk_object(self, path: str, value: Any) -> None:
        """Attributes of an object; of one that is not the user's, and its public collections."""
        kind = type(value)
        package = kind.__module__.partition(".")[0]
        if isinstance(value, types.ModuleType) or package in _NOT_LOOKED_INTO:
            return
        if isinstance(value, torch.nn.Module):  # one that is not registered
            for name, module in value.named_modules():
                where, kind = f"{path}.{name}." if name else f"{path}.", type(module)
                if module is value or id(module) not in self._seen:
                    for table in (parameters_of(module), buffers_of(module)):
                        self._take(where, kind, "", table, dict(table))
                self._seen.add(id(module))
                self._walk_module(where, module)
                self._walk_class(f"{path}.", kind)
            return
        users = is_of_user(kind) or isinstance(value, types.SimpleNamespace)
        if hasattr(value, "__dict__"):
            entries = dict(vars(value))
            self._take(f"{path}.", kind, "", vars(value), entries, looks_into=users)
            for key, part in entries.items() if not users else ():
                if not str(key).startswith("_") and isinstance(part, (torch.Tensor, *COLLECTIONS)):
                    self._waiting.append((f"{path}.{key}", key, kind, part, self._outside))
        if users and (slots := slots_of(value)):
            self._take(f"{path}.", kind, "", value, slots)
        if users:
            self._walk_class(f"{path}.", kind)

    def _walk_class(self, prefix: str, kind: type) -> None:
        for base in kind.__mro__:
            if id(base) in self._code or not is_of_user(base):
                continue
            self._code.add(id(base))
            body = vars(base)
            entries = {
                key: value
                for key, value in body.items()
                if not key.startswith("__") and is_held_by_class(value)
            }
            self._take(prefix, kind, "", base, entries, partial=True)
            for value in map(concrete, body.values()):
                for function in functions_of(value):
                    if isinstance(function, types.FunctionType):
                        self._walk_function(function)
                    elif isinstance(function, CACHED):
                        self._walk(prefix + function.__name__, function.__name__, kind, function)

    def _walk_function(self, function: types.FunctionType) -> None:
        """What a function reads beside its arguments, and what are their defaults.

        Functions that one decorator has made share their code and so their global variables;
        their closures and defaults are their own.
        """
        code = function.__code__
        if id(function) in self._seen or not is_script(function):
            return
        self._seen.add(id(function))
        outer, self._outside = self._outside, True
        if id(code) not in self._code:
            self._code.add(id(code))
            self._walk_globals(function)
        if defaults := entries_of(function):
            self._take("", function, "", function, defaults)
        if vars(function) or function.__name__ in code.co_names:
            path = f"{function.__name__}."
            self._take(path, function, "", vars(function), dict(vars(function)), partial=True)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
            if id(cell) in self._seen:
                continue  # of two functions in one
            self._seen.add(id(cell))
            try:
                self._take("", function, name, cell, {name: cell.cell_contents})
            except ValueError:
                continue  # an empty cell
        self._outside = outer

    def _walk_globals(self, function: types.FunctionType) -> None:
        """Global variables that a function may name, and those of files that it imports."""
        names = dict.fromkeys(names_in(function.__code__))
        for path, owner, variables in global_state(function, names):
            space = function.__globals__ if owner is function else vars(owner)
            self._take(path, owner, "", space, variables, partial=True)


def _tensors_of(value: Any) -> list[torch.Tensor]:
    """A tensor, or those in a tuple."""
    if type(value) is tuple:
        return [tensor for item in value for tensor in _tensors_of(item)]
    return [value] if isinstance(value, torch.Tensor) else []


_OF_THE_PROCESS = frozenset({id(random.random.__self__), id(np.random.rand.__self__)})
"""Identities of the generators behind the functions of ``random`` and ``numpy.random``: the
tracer looks at them apart."""

_NOT_LOOKED_INTO = frozenset({"torch", "samba", "sambaflow", "builtins", "jax"})
"""Packages whose objects are none of the user's; one of a longer name, as torchtune, may be."""


def _has(value: Any, tensors: Collection[int]) -> bool:
    """Whether a value is one of some tensors, or a tuple or list of them."""
    if type(value) in (tuple, list):
        return any(_has(item, tensors) for item in value)
    return id(value) in tensors


def _replaced(value: Any, replace: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return replace(value)
    if type(value) is tuple:
        return tuple(_replaced(item, replace) for item in value)
    return value
