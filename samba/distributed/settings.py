"""Environment variables of data parallel runs, and whether this process has joined others."""

from __future__ import annotations

import os
from typing import Any

from samba.errors import ArgumentError, literal
from samba.support.slot import Slot

PRESENT: Slot[Any] = Slot()
"""The :class:`~samba.distributed.job.Job` of this process, none outside of one."""

ENGINES = ("torch", "jax")
_DEADLINE_SECONDS = 600.0

DEFAULT_BUCKET_BYTES = 10 << 20
"""Bagua's default: large enough to use a network's bandwidth, small enough to overlap."""


def deadline_seconds() -> float:
    """Seconds that a collective may take: ``CCL_TIMEOUT``.

    Raises:
        ArgumentError: If it is not a positive number.
    """
    text = os.environ.get("CCL_TIMEOUT", "")
    if not text:
        return _DEADLINE_SECONDS
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ArgumentError(
            where="environment variable CCL_TIMEOUT",
            found=repr(text),
            wanted="a number of seconds above 0",
        )
    return seconds


def engine_name() -> str:
    """The engine that reduces gradients: ``SN_DP_ENGINE``, ``"torch"`` without it.

    Raises:
        ArgumentError: If there is no such engine.
    """
    name = os.environ.get("SN_DP_ENGINE") or ENGINES[0]
    if name not in ENGINES:
        raise ArgumentError(
            where="environment variable SN_DP_ENGINE",
            found=repr(name),
            wanted=" or ".join(map(repr, ENGINES)),
        )
    return name


def checks_every_run() -> bool:
    """Whether replicas compare notes before every run: ``SN_DP_CHECK=1``."""
    return os.environ.get("SN_DP_CHECK", "0") not in ("", "0")


def bucket_bytes() -> int:
    """Bytes up to which gradients share a bucket: ``BAGUA_DEFAULT_BUCKET_SIZE``, or 10 MiB.

    Raises:
        ArgumentError: If the variable is not a positive number.
    """
    text = os.environ.get("BAGUA_DEFAULT_BUCKET_SIZE", "")
    if not text:
        return DEFAULT_BUCKET_BYTES
    # isdigit alone takes characters such as "²", of which int makes no number.
    if not (text.isascii() and text.isdigit() and len(text) < 19) or int(text) < 1:
        raise ArgumentError(
            where="environment variable BAGUA_DEFAULT_BUCKET_SIZE",
            found=literal(text),
            wanted="a number of bytes, 1 or more",
        )
    return int(text)
