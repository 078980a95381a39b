"""The operation that marks, in an exported graph, which way a branch of ``forward`` went."""

from __future__ import annotations

from functools import cache

import torch

from samba.tracer.torch_internals import keep_operation

CHECK = "samba.checked_branch.default"
"""Says what a condition was when the model was traced: another value is an error of the run."""


@cache
def register() -> torch.library.Library:
    """Make the operation known to torch, once in a process.

    Returns:
        What keeps it known.
    """
    library = torch.library.Library("samba", "FRAGMENT")
    library.define("checked_branch(Tensor condition, bool taken) -> ()")
    library.impl("checked_branch", _nothing, "CompositeExplicitAutograd")
    keep_operation(torch.ops.samba.checked_branch.default)
    return library


def check(condition: torch.Tensor, taken: bool) -> None:
    """Put a check into the graph that is being traced.

    Args:
        condition: One element of any type.
        taken: What it has to be, as a truth value.
    """
    register()
    torch.ops.samba.checked_branch(condition, taken)


def _nothing(condition: torch.Tensor, taken: bool) -> None:
    del condition, taken
