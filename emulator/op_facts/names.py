"""Names of the ops that the tracer and the compiler insert by themselves."""

from __future__ import annotations

ALIAS = "aten.alias.default"
"""Gives a value that is one already a second time, as an output of its own."""

NEXT_SEED = "samba.next_seed"
"""Advances the state of the random stream by one forward pass."""

CAST_INPUT = "samba.cast_bf16.input"
"""Rounds the values that go into an operation."""

CAST_RESULT = "samba.cast_bf16.result"
"""Rounds a result for every operation that takes it."""

CHECKED_BRANCH = "samba.checked_branch"
"""Notes in state of a graph whether a branch that was traced one way would have gone the other."""

CASTS = frozenset({CAST_INPUT, CAST_RESULT})
