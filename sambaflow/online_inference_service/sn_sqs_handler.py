"""Queues of the vendor's inference service."""

from __future__ import annotations

from typing import Any

from samba.errors import SambaError

__all__ = ["NoService", "Queue"]


class NoService(SambaError, RuntimeError):
    """The inference service is asked for, and there is none."""

    deviation = "inference-service"

    def __init__(self) -> None:
        super().__init__(
            "sn_sqs_handler.Queue: the online inference service is not part of the emulator. "
            "Feed samba.session.run(...) from your own queue."
        )


class Queue:
    """A queue of requests; it cannot be made.

    Raises:
        NoService: Always.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NoService
