"""What scripts write into host tensors whose twins are on the device.

Host and device have each their own memory, and ``to_cpu`` and ``to_rdu`` copy between them. A
state that is loaded on the host (``load_state_dict`` of modules and optimizers) counts at the next
run all the same. Other writes in place are told: the host's values may be older than the
device's, and what they were changed to is then not what torch would have.
"""

from __future__ import annotations

import traceback
import weakref
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Protocol

import torch
from torch.nn import init

from emulator.device import Device
from pef_schema.printable import some_of
from samba.sambatensor import SambaTensor
from samba.session.host_tensors import HostTensor
from samba.session.known_buffers import KnownBuffers
from samba.session.watching import Call, Watcher
from samba.support.deviations import Deviations
from samba.tensor.host_use import HostUse, twinned

_watching: weakref.WeakSet[HostWrites] = weakref.WeakSet()
_hooked: weakref.WeakSet[Any] = weakref.WeakSet()
"""Modules and optimizers that say when a state is loaded into them."""

_ASKS_TO_CLEAR = ("torch.optim", "torch.nn.modules", "samba.")
"""Modules whose code reads ``grad`` without wanting its values."""

_READS_NOTHING = frozenset({"", "__get__", "__set__", "requires_grad_", "register_hook"})
"""Functions that look at no values; the empty name stands for one that overwrites all of them."""


class DeviceTwins(Protocol):
    """What holds the twins of host tensors on the device: ``samba.session.loaded.Loaded``."""

    device: Device

    @property
    def gradients_wait(self) -> bool: ...
    def all_tensors(self, operation: str) -> list[HostTensor]: ...
    def has_grad(self, name: str) -> bool: ...
    def read_tensors(self, tensors: Sequence[HostTensor]) -> None: ...
    def write_tensors(self, tensors: Sequence[HostTensor]) -> None: ...
    def optimizers_to_rdu(self, optims: Any) -> None: ...


class HostWrites(Watcher):
    """Looks after the host tensors of a loaded program.

    Args:
        loaded: The program with its models; it is not kept alive.
        models: Its models.
        optimizers: Its optimizers.
        known: Buffers whose values are part of its graphs.
    """

    def __init__(
        self,
        loaded: DeviceTwins,
        models: Sequence[torch.nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        known: KnownBuffers,
    ) -> None:
        self.known = known
        self._loads_known = False
        self._loaded: DeviceTwins = weakref.proxy(loaded)
        groups = iter(loaded.device.program.optimizers)
        places = [
            [p for g in islice(groups, len(o.param_groups)) for p in g.params] for o in optimizers
        ]
        self._states = [
            (o, [region for place in of_one for region in place.states])
            for o, of_one in zip(optimizers, places, strict=True)
        ]
        """The optimizers with the regions of their states."""
        self._twins: list[tuple[HostTensor, HostUse]] = []
        self._plain: list[torch.Tensor] = []
        self._trained: list[bool] = []
        self._versions: list[int] = []
        self._synced: dict[int, Any] = {}
        self._due = self._told_older = False
        self._pending: dict[str, HostTensor] = {}
        self._loaded_optimizers: list[torch.optim.Optimizer] = []
        self._deviations = Deviations()
        self._enter(loaded.all_tensors("run()"))
        _watching.add(self)
        for module in {id(m): m for model in models for m in model.modules()}.values():
            if module not in _hooked:
                _hooked.add(module)
                module.register_load_state_dict_pre_hook(_module_is_loaded)
                module.register_load_state_dict_post_hook(_module_loaded)
        for optimizer, _ in self._states:
            if optimizer not in _hooked:
                _hooked.add(optimizer)
                optimizer.register_load_state_dict_post_hook(_optimizer_loaded)
                optimizer.register_state_dict_pre_hook(_optimizer_is_saved)
                optimizer.register_step_pre_hook(_optimizer_steps)

    def _enter(self, tensors: Sequence[HostTensor]) -> None:
        self._leave()
        self._twins = [(entry, HostUse(entry.tensor, self)) for entry in tensors]
        for entry, use in self._twins:
            twinned[id(entry.tensor)] = use
        self._trained = self._flags()
        # Torch functions on plain tensors leave no note: their counts are compared in every run.
        self._plain = [
            entry.tensor
            for entry in tensors
            if not isinstance(entry.tensor, SambaTensor) and not entry.tensor.is_inference()
        ]
        self._plain += self.known.tensors()
        self._versions = self._counts()

    def _counts(self) -> list[int]:
        """How often each plain tensor was written, negative for one that is not trained."""
        return [t._version if t.requires_grad else -1 - t._version for t in self._plain]

    def _flags(self) -> list[bool]:
        """Whether each tensor is trained."""
        with torch._C.DisableTorchFunctionSubclass():  # or it would count as a use
            return [entry.tensor.requires_grad for entry, _ in self._twins]

    def close(self) -> None:
        """Look after nothing any more."""
        self._leave()
        self._states = []

    def _leave(self) -> None:
        for entry, use in self._twins:
            if twinned.get(id(entry.tensor)) is use:
                del twinned[id(entry.tensor)]
        self._twins, self._plain, self._versions, self._trained = [], [], [], []

    # -- what scripts do ------------------------------------------------------------

    def used(self, tensor: torch.Tensor, operation: str) -> None:
        """A script uses one of the tensors on the host: told if the device has newer values.

        Args:
            tensor: The tensor.
            operation: What it does with it.
        """
        self._due = True
        if operation in _READS_NOTHING or self._told_older:
            return
        entry = next((e for e, _ in self._twins if e.tensor is tensor), None)
        if entry is not None and self._is_older(entry) and not _is_initialized():
            self._tell_older(operation, entry)

    def _tell_older(self, operation: str, entry: HostTensor) -> None:
        if self._told_older:
            return
        self._told_older = True
        self._deviations.tell(
            "older-host-values",
            "the host uses parameters that runs have changed on the device: host memory has "
            "older values until samba.session.to_cpu(model) copies them (the first use is "
            f"{operation} of {entry.path})",
        )

    def taken(
        self,
        model: torch.nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        operation: str,
    ) -> None:
        """Another program takes host memory: told if the device has newer values of it.

        Not of what a script has written or loaded on the host since: it means that.

        Args:
            model: Any model.
            optimizers: Any optimizers.
            operation: What takes it.
        """
        for entry, use in self._inside(model):
            written = entry.path in self._pending or use.written(entry.tensor)
            if not written and self._is_older(entry):
                self._tell_older(operation, entry)
        for optimizer in optimizers:
            self.optimizer_is_used(optimizer, operation)

    def optimizer_is_used(self, optimizer: torch.optim.Optimizer, operation: str) -> None:
        """The state of an optimizer on the host is used: told if the device has a newer one.

        Args:
            optimizer: Any optimizer.
            operation: What is done with it.
        """
        regions = next((regions for o, regions in self._states if o is optimizer), None)
        if not regions or any(o is optimizer for o in self._loaded_optimizers):
            return
        buffers = self._loaded.device.pool.buffers
        if any(buffers[region] is not None and not self._is_synced(region) for region in regions):
            self._deviations.tell(
                "older-host-values",
                f"{operation} uses the state of {type(optimizer).__name__} on the host, which runs "
                "have changed on the device: host memory has an older state, or none, until "
                "samba.session.to_cpu(model, optimizer) copies it",
            )

    def optimizer_steps(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer is about to step on the host: told if all its gradients are on the device.

        A script may call ``step()`` beside runs that update, which is right as it is.

        Args:
            optimizer: Any optimizer.
        """
        if not self._loaded.gradients_wait or all(o is not optimizer for o, _ in self._states):
            return
        if all(p.grad is None for group in optimizer.param_groups for p in group["params"]):
            self._deviations.tell(
                "host-gradient",
                f"{type(optimizer).__name__}.step() updates nothing: the gradients of the last "
                "backward pass are on the device, and the parameters have none on the host. Run "
                "section_types=['opt'] to update them on the device",
            )

    def lacks_gradient(self, tensor: torch.Tensor, reader: str) -> None:
        """A script has found no gradient on the host: told if the device has one.

        Args:
            tensor: The tensor.
            reader: Module of the code that asked. Torch's optimizers and modules ask to set
                gradients to zero, or to step, which is right as it is.
        """
        if reader.startswith(_ASKS_TO_CLEAR):
            return
        name = getattr(tensor, "sn_name", "")
        if not self._loaded.device.counters.runs or not self._loaded.has_grad(name):
            return
        self._deviations.tell(
            "host-gradient",
            "the script reads .grad of a parameter that is trained on the device and gets None: "
            "gradients stay on the device; read and set them with .sn_grad. To clip them, give "
            "the optimizer max_grad_norm (samba.optim)",
        )

    def module_is_loaded(self, module: torch.nn.Module) -> None:
        """A state is about to be loaded into a module: what it leaves alone keeps its values.

        A state may lack some tensors, and code that loads it may read others, so host memory gets
        the device's values where those are newer.

        Args:
            module: Any module.
        """
        older = [entry for entry, _ in self._inside(module) if self._is_older(entry)]
        if older:
            self.warn_of_writes("load_state_dict")
            self._loaded.read_tensors(older)

    def module_loaded(self, module: torch.nn.Module) -> None:
        """Take note that a state was loaded into a module: its values count at the next run.

        Args:
            module: Any module.
        """
        for entry, use in self._inside(module):
            if use.written(entry.tensor):
                self._pending[entry.path] = entry
                use.looked(entry.tensor)
                self._due = True
        if self.known:
            self._loads_known = self._due = True
        # Tensors that a module has in the place of others, as ``assign=True`` leaves it.
        known = {id(entry.tensor) for entry, _ in self._twins}
        present = self._loaded.all_tensors("run()")
        if replacing := {e.path: e for e in present if id(e.tensor) not in known}:
            self._pending |= replacing
            self._due = True
            self._enter(present)

    def _inside(self, module: torch.nn.Module) -> list[tuple[HostTensor, HostUse]]:
        inside = {id(t) for t in (*module.parameters(), *module.buffers())}
        return [(entry, use) for entry, use in self._twins if id(entry.tensor) in inside]

    def optimizer_loaded(self, optimizer: torch.optim.Optimizer) -> None:
        """A state was loaded into an optimizer: it counts at the next run.

        Args:
            optimizer: Any optimizer.
        """
        if any(o is optimizer for o, _ in self._states):
            self._loaded_optimizers.append(optimizer)
            self._due = True

    # -- what runs and transfers ask ----------------------------------------------------

    @property
    def looks(self) -> bool:
        """True: a script may use a host tensor at any time."""
        return True

    def changed(self) -> bool:
        """Whether a script has used a tensor, loaded a state, or written what leaves no note."""
        return self._due or (bool(self._plain) and self._versions != self._counts())

    def before(self, call: Call) -> None:
        """As :meth:`bring`."""
        del call
        self.bring()

    def bring(self, operation: str = "session.run") -> None:
        """Copy to the device what was loaded, and warn of other writes.

        Args:
            operation: What is about to happen, for the message.
        """
        if not self.changed():
            return
        self._warn_of_flags()
        if self.known:
            self._look_at_known(operation)
        self.warn_of_writes(operation)
        if self._pending:
            self._loaded.write_tensors(list(self._pending.values()))
            self._note_synced([entry.region for entry in self._pending.values()])
        for optimizer in self._loaded_optimizers:
            self._loaded.optimizers_to_rdu(optimizer)
        self._pending, self._loaded_optimizers, self._due = {}, [], False

    def _look_at_known(self, operation: str) -> None:
        """What a script has done to buffers that are part of a graph."""
        if self._loads_known:
            self.known.refuse_changed(f"{operation} after load_state_dict")
            self._loads_known = False
        elif names := self.known.changed():
            self._deviations.tell(
                "host-write",
                f"{operation}: {some_of(names)} changed in host memory. forward() reads numbers "
                "from it, which are constants of the graph: the device still uses the old ones. "
                "Compile and load the model again",
            )

    def warn_of_writes(self, operation: str) -> None:
        """Warn of writes in place that nothing has copied to the device.

        Args:
            operation: What is about to happen.
        """
        names, known = [], self.known.paths
        for entry, use in self._twins:
            if use.written(entry.tensor) and entry.path not in (*self._pending, *known):
                names.append(entry.path)
            use.looked(entry.tensor)
        self._versions = self._counts()
        if names:
            self._deviations.tell(
                "host-write",
                f"{operation}: {some_of(names)} changed in host memory, which the "
                "device does not read: it keeps its own values. Call "
                "samba.session.to_cpu(model) before such a change and samba.session.to_rdu(model) "
                "after it",
            )

    def _warn_of_flags(self) -> None:
        """Warn of parameters that a script has frozen, or the other way round, since the load."""
        now = self._flags()
        if now == self._trained:
            return
        names = [
            f"{entry.path} is {new}"
            for (entry, _), new, old in zip(self._twins, now, self._trained, strict=True)
            if new is not old
        ]
        self._trained = now
        self._deviations.tell(
            "requires-grad-after-trace",
            f"requires_grad changed after trace_graph ({some_of(names)}), but the program "
            "still trains the parameters it was compiled to train. Compile and load again",
        )

    def copied(self, tensors: Sequence[HostTensor]) -> None:
        """Host and device have the same values of some tensors now.

        Args:
            tensors: The tensors.
        """
        ids = {id(entry.tensor) for entry in tensors}
        for entry, use in self._twins:
            if id(entry.tensor) in ids:
                use.looked(entry.tensor)
                self._pending.pop(entry.path, None)
        self._versions = self._counts()
        self._note_synced([entry.region for entry in tensors])

    def same(self, tensor: torch.Tensor) -> None:
        """Host and device have the same values of a tensor now.

        Args:
            tensor: The tensor.
        """
        self.copied([entry for entry, _ in self._twins if entry.tensor is tensor])

    def copied_optimizers(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Host and device have the same state of some optimizers now.

        Args:
            optimizers: The optimizers.
        """
        ids = set(map(id, optimizers))
        self._loaded_optimizers = [o for o in self._loaded_optimizers if id(o) not in ids]
        for optimizer, regions in self._states:
            if id(optimizer) in ids:
                self._note_synced(regions)

    def _note_synced(self, regions: Iterable[int]) -> None:
        buffers = self._loaded.device.pool.buffers
        for region in regions:
            buffer = buffers[region]
            self._synced[region] = None if buffer is None else weakref.ref(buffer)

    def _is_synced(self, region: int) -> bool:
        """Whether the device's memory is still what it was when host and device were the same."""
        synced = self._synced.get(region)
        return synced is not None and synced() is self._loaded.device.pool.buffers[region]

    def _is_older(self, entry: HostTensor) -> bool:
        """Whether a run has written the device's memory since both were the same."""
        buffer = self._loaded.device.pool.buffers[entry.region]
        known = self._synced.get(entry.region) is not None and buffer is not None
        return known and not self._is_synced(entry.region)


def _is_initialized() -> bool:
    """Whether ``torch.nn.init`` asks: for the form of a tensor, or for what it has drawn."""
    frames = traceback.walk_stack(None)
    return any(frame.f_globals.get("__name__") == init.__name__ for frame, _ in frames)


def _module_is_loaded(module: torch.nn.Module, *state: Any) -> None:
    """Hook of modules before a state is loaded; as the one after it."""
    del state
    for writes in list(_watching):
        writes.module_is_loaded(module)


def _module_loaded(module: torch.nn.Module, incompatible_keys: Any) -> None:
    """Hook of modules; a function of this file, so that modules that have it can be pickled."""
    del incompatible_keys
    for writes in list(_watching):
        writes.module_loaded(module)


def _optimizer_loaded(optimizer: torch.optim.Optimizer) -> None:
    """Hook of optimizers; as that of modules."""
    for writes in list(_watching):
        writes.optimizer_loaded(optimizer)


def _optimizer_is_saved(optimizer: torch.optim.Optimizer) -> None:
    """Hook of optimizers before ``state_dict()``."""
    for writes in list(_watching):
        writes.optimizer_is_used(optimizer, "optimizer.state_dict()")


def _optimizer_steps(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """Hook of optimizers before ``step()``."""
    del args, kwargs
    for writes in list(_watching):
        writes.optimizer_steps(optimizer)


def tell_if_older(
    models: Iterable[torch.nn.Module],
    optimizers: Sequence[torch.optim.Optimizer],
    operation: str,
) -> None:
    """Tell if a program takes values from the host of which loaded programs have newer ones.

    Args:
        models: Whose parameters and buffers are taken.
        optimizers: Whose states are taken.
        operation: What takes them.
    """
    for writes in list(_watching):
        for model in models:
            writes.taken(model, optimizers, operation)
