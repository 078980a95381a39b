"""Hooks that ``forward`` registers and removes: of the next call they are part, as attributes are.

transformers registers its hooks in the first call that needs them, for example.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from samba.tracer.torch_internals import hook_tables_of

__all__ = ["HeldHooks", "MovedHook"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedHook:
    """A hook that was registered or removed, or a note on how it is called.

    Args:
        table: The table of its module.
        key: Its key there.
        hook: What the table has of it; None if it was removed.
    """

    table: dict[int, Any]
    key: int
    hook: Any

    def repeat(self) -> None:
        """Register it, or remove it, once more."""
        if self.hook is None:
            self.table.pop(self.key, None)
        else:
            self.table[self.key] = self.hook


class HeldHooks:
    """The hooks of a model's modules, as they are when this is made.

    A hook counts as the same under the same key: it may be exchanged for one that watches it.

    Args:
        model: The model.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Tanh())
        >>> before = HeldHooks(model)
        >>> _ = model[0].register_forward_hook(print)
        >>> before.counts()
        [('0.forward hooks', 0, 1)]
        >>> before.put_back()
        >>> before.counts()
        []
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._held = [
            (f"{path}." * bool(path) + kind, table, dict(table))
            for path, module in model.named_modules()
            for kind, table in hook_tables_of(module).items()
        ]

    def counts(self) -> list[tuple[str, int, int]]:
        """Of each table in which hooks were moved since: its path, hooks before, and now."""
        return [
            (path, len(held), len(table))
            for path, table, held in self._held
            if held.keys() != table.keys()
        ]

    def moved(self) -> list[MovedHook]:
        """What was registered and removed since, for another call to begin there."""
        return [
            MovedHook(table=table, key=key, hook=table.get(key))
            for _, table, held in self._held
            for key in dict.fromkeys((*held, *table))
            if (key in held) != (key in table)
        ]

    def put_back(self) -> None:
        """Remove what was registered since, and register what was removed, in its old place."""
        for _, table, held in self._held:
            if held.keys() != table.keys():
                kept = {key: table.get(key, hook) for key, hook in held.items()}
                table.clear()
                table.update(kept)
