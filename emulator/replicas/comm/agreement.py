"""Agreements of ranks: a few messages for each where all have the same, all texts where not."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from emulator.replicas.comm.protocol import Communicator

_DIGEST = 16


def same_on_all_ranks(control: Communicator, values: Sequence[bytes | memoryview]) -> list[bool]:
    """Say of each value whether all ranks have the same; every rank comes to the same answer.

    Ranks disseminate what they know (Hensgen, Finkel, Manber, "Two algorithms for barrier
    synchronization", 1988): in round k each sends to the rank that is 2^k further and hears from
    the one that is 2^k before, so that it knows of 2^(k+1) ranks afterwards. That is one message
    a round for each rank, ceil(log2(size)) altogether, and of 17 bytes for each value.

    Args:
        control: The ranks; all of them call this with the same number of values.
        values: This rank's values, of any length: only their digests are compared.

    Returns:
        Whether they are the same everywhere, for each value.

    Raises:
        DataParallelError: If a rank does not take part.

    Example:
        >>> from emulator.replicas.comm.inprocess import run_ranks
        >>> run_ranks(3, lambda comm: same_on_all_ranks(comm, [b"x", bytes([comm.rank // 2])]))
        [[True, False], [True, False], [True, False]]
    """
    rows = [hashlib.blake2b(value, digest_size=_DIGEST).digest() + b"\1" for value in values]
    known = np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), _DIGEST + 1).copy()
    heard = np.empty_like(known)
    step = 1
    while step < control.size:
        to, source = (control.rank + step) % control.size, (control.rank - step) % control.size
        control.exchange(heard.reshape(-1), known.reshape(-1), to, source)
        # The last column says whether all of whom a rank knows have its digest.
        known[:, -1] &= heard[:, -1] & (known[:, :-1] == heard[:, :-1]).all(axis=1)
        step *= 2
    return [bool(same) for same in known[:, -1]]


def texts_unless_same(control: Communicator, text: bytes) -> list[bytes] | None:
    """The texts of all ranks, if they are not the same.

    Only then are they gathered, which is a message from each rank to each other one.

    Args:
        control: The ranks; all of them call this.
        text: This rank's text.

    Returns:
        The texts in the order of ranks; None where all have the same.

    Raises:
        DataParallelError: If a rank does not take part.

    Example:
        >>> from emulator.replicas.comm.inprocess import run_ranks
        >>> run_ranks(2, lambda comm: texts_unless_same(comm, b"the same"))
        [None, None]
    """
    (same,) = same_on_all_ranks(control, [text])
    return None if same else control.gather_bytes(text)


def differing(tables: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    """The facts that are not the same for all ranks.

    Args:
        tables: The facts of each rank, by name.

    Returns:
        By the name of the fact what each rank has; ``(none)`` where it has none.

    Example:
        >>> differing([{"a": "1", "b": "2"}, {"a": "1"}])
        {'b': ['2', '(none)']}
    """
    names = dict.fromkeys(name for table in tables for name in table)
    columns = {name: [table.get(name, "(none)") for table in tables] for name in names}
    return {name: values for name, values in columns.items() if len(set(values)) > 1}
