"""Work of jax and torch that the fast tests leave out, and sweeps of hundreds of programs."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

_LOWERINGS = 200
"""How many share a context; what they made in it stays until it goes."""

Put = Callable[[Any, str, Any], None]


def keep_contexts(put: Put = setattr) -> None:
    """Lower many programs in one MLIR context, which takes jax longer to make than a small one.

    Only in the thread that calls this: a context is not made for dialects that come while another
    thread is in it. What is lowered does not change.

    Args:
        put: Puts a value in the place of an attribute, for good or for a while.
    """
    from jax._src.interpreters import mlir

    general, owner = mlir.make_ir_context, threading.get_ident()
    kept: list[Any] = []
    uses = 0

    def context() -> Any:
        nonlocal uses
        if threading.get_ident() != owner:
            return general()
        if uses % _LOWERINGS == 0:
            kept[:] = [general()]
        uses += 1
        return kept[0]

    put(mlir, "make_ir_context", context)


def keep_bookkeeping(put: Put = setattr) -> None:
    """List torch's composite operations once, so that every later trace in this process is cheap.

    ``run_decompositions`` lists and wraps all of them again on every call, and makes for each a
    function that refuses gradients, which takes longer than tracing one operator. Nothing registers
    operators while tests run. What is traced does not change.

    Args:
        put: As for :func:`keep_contexts`.
    """
    import torch._export.utils
    import torch.export.decomp_utils
    import torch.export.exported_program
    from torch._ops import OperatorBase

    key_type, python = torch._C.DispatchKey, torch._C.DispatchKey.Python
    listing = functools.cache(torch._export.utils._collect_all_valid_cia_ops)
    exported: Any = torch.export.exported_program
    for module in (exported, torch.export.decomp_utils):
        put(module, "_collect_all_valid_cia_ops", listing)
    refusing = functools.cache(exported.autograd_not_implemented)
    put(exported, "autograd_not_implemented", refusing)
    general = OperatorBase.py_impl

    def register(self: Any, key: Any) -> Callable[[Any], Any]:
        # The general function builds generic types at every call.
        if not isinstance(key, key_type) or key is python:
            return general(self, key)
        if key in self.py_kernels:
            return general(self, key)
        return functools.partial(_register, self, key)

    put(OperatorBase, "py_impl", register)
    remembering = _remembering(exported._override_composite_implicit_decomp)
    put(exported, "_override_composite_implicit_decomp", remembering)


def rehearse() -> None:
    """Do what the first trace and load of a process do, for the processes that it forks.

    Nothing is compiled, and no random number is drawn. In `make test-all` torch and jax stay as
    they are.
    """
    import importlib
    import warnings

    import torch
    import tqdm

    for name in ("samba.session.compiling", "samba.session.loading", "emulator.device"):
        importlib.import_module(name)

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.view(-1).clone()
            x[0] = 1
            return x.square().mean()

    if os.environ.get("XLA_FLAGS"):  # `make test-all` sets it to nothing
        keep_bookkeeping()
        keep_contexts()
    interval, tqdm.tqdm.monitor_interval = tqdm.tqdm.monitor_interval, 0  # else it starts a thread
    try:
        with warnings.catch_warnings(action="ignore", category=FutureWarning):  # torch's own
            torch.export.export(Model(), (torch.ones(2, 2),)).run_decompositions()
    finally:
        tqdm.tqdm.monitor_interval = interval


def _remembering(general: Callable[[Any], AbstractContextManager[None]]) -> Callable[[Any], Any]:
    """What keeps composite operations whole for a while, with the kernels that it made before.

    Torch's own makes twenty kernels for each of hundreds of operations in every
    ``run_decompositions``, and takes them away again. An operation gets those of an earlier call
    if it had the same ones before that call, and the same rule is to hold for it.
    """
    from torch._subclasses import fake_impls

    rules = fake_impls.op_implementations_dict
    made: dict[Any, tuple[Any, dict[Any, Any], dict[Any, Any], Any]] = {}

    def put(operator: Any, kernels: dict[Any, Any]) -> None:
        operator.py_kernels.clear()
        operator.py_kernels.update(kernels)
        operator._dispatch_cache.clear()

    @contextmanager
    def override(rule_of: dict[Any, Any]) -> Iterator[None]:
        known = {
            operator: made[operator]
            for operator, rule in rule_of.items()
            if operator in made
            and made[operator][0] is rule
            and made[operator][1] == operator.py_kernels
            and operator not in rules
        }
        new = {operator: rule for operator, rule in rule_of.items() if operator not in known}
        before = {operator: dict(operator.py_kernels) for operator in new}
        are_rules = {operator for operator in new if operator in rules}
        with general(new):
            for operator, rule in new.items():
                if operator not in are_rules:
                    kernels = dict(operator.py_kernels)
                    made[operator] = rule, before[operator], kernels, rules[operator]
            for operator, (_, _, kernels, own) in known.items():
                put(operator, kernels)
                rules[operator] = own
            try:
                yield
            finally:
                for operator, (_, kernels, _, _) in known.items():
                    put(operator, kernels)
                    rules.pop(operator, None)

    return override


def _register(operator: Any, key: Any, function: Any) -> Any:
    operator.py_kernels[key] = function
    operator._dispatch_cache.clear()
    return function
