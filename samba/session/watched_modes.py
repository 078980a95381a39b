"""Modes of modules, which a program has as they were when it was traced."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

from torch import nn

from pef_schema.program import Graph, Program, Ref
from samba.support.deviations import Deviations, some_of

__all__ = ["WatchedModes"]

_SENSITIVE = (
    nn.modules.batchnorm._NormBase,
    nn.modules.dropout._DropoutNd,
    nn.RNNBase,
    nn.MultiheadAttention,
)
"""Modules of torch's own that compute something else in training."""


class WatchedModes:
    """Whether modules are in the mode in which a loaded program has them.

    ``model.eval()`` and ``model.train()`` change nothing of a program. Who calls them before a
    run is told so, once, if a module that looks at its mode is concerned.

    Args:
        model: The model that was loaded; None watches nothing.
        program: The program.
    """

    def __init__(self, model: nn.Module | None = None, program: Program | None = None) -> None:
        modules = () if model is None else model.named_modules()
        found = [
            (path or type(m).__name__, m)
            for path, m in modules
            if "training" in vars(m) and _looks_at_mode(type(m))
        ]
        self._names = [path for path, _ in found]
        self._silent = [isinstance(m, nn.modules.dropout._DropoutNd) for _, m in found]
        self._flags: list[dict[str, Any]] = [vars(m) for _, m in found]
        self._loaded = [flags["training"] for flags in self._flags]
        self._seen = self._loaded
        self._inference = program is not None and program.inference
        self._batch_norms = [] if program is None else _batch_norms(program.graphs[0])
        self._deviations = Deviations()

    @property
    def any(self) -> bool:
        """Whether there are modules that look at their mode."""
        return bool(self._flags)

    def changed(self) -> bool:
        """Whether a module is in another mode than when it was looked at last."""
        return self._seen != [flags["training"] for flags in self._flags]

    def tell(self, *, train: bool) -> None:
        """Say where a run does something else than the modes say; and what ``train=False`` leaves.

        Args:
            train: Whether the run honours dropout rates.
        """
        self._seen = [flags["training"] for flags in self._flags]
        for training, word in ((False, "eval"), (True, "train")):
            names = [
                name
                for name, silent, loaded, now in zip(
                    self._names, self._silent, self._loaded, self._seen, strict=True
                )
                if now is training
                and now is not loaded
                and not (silent and not train and not training)
                and not (self._inference and not training)
            ]
            if names:
                self._deviations.tell(
                    "mode-after-trace",
                    f"{word}() was called after trace_graph, on {some_of(names)}: session.run goes "
                    "on in the mode that was compiled. samba.session.evaluator(model, inputs) "
                    "evaluates beside training",
                )
        if not train and self._batch_norms:
            self._deviations.tell(
                "batch-statistics",
                f"run(train=False): batch norm at {some_of(self._batch_norms)} still uses and "
                "updates statistics of the batch, as train=False is for dropout alone. "
                "samba.session.evaluator(model, inputs) evaluates with running statistics",
            )


def _looks_at_mode(kind: type) -> bool:
    """Whether code of a module's class asks for ``self.training``."""
    if kind.__module__.startswith("torch.nn."):
        return issubclass(kind, _SENSITIVE)
    return any(
        "training" in _names_of(value.__code__)
        for base in kind.__mro__
        if base is not nn.Module and not base.__module__.startswith("torch.")
        for value in vars(base).values()
        if isinstance(value, types.FunctionType)
    ) or issubclass(kind, _SENSITIVE)


def _names_of(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_of(constant)


def _batch_norms(graph: Graph) -> list[str]:
    """Lines, else modules, of norms that would use running statistics in evaluation mode."""
    found = [
        node.source or node.module
        for node in graph.nodes
        if ("batch_norm" in node.op or "instance_norm" in node.op)
        and len(node.args) > 5
        and isinstance(node.args[3], Ref)
        and node.args[5] is True
    ]
    return list(dict.fromkeys(found))
