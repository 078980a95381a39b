"""Contenders that are several replicas, each in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

from bench.peers import REPLICA
from bench.process import Worker

REPLICAS = 2


class Replicas:
    """Workers that are asked all at once.

    Args:
        start: Starts the worker of a contender for a case: ``Settings.start``.
        case: The case.
        contender: Whose they are.
    """

    def __init__(self, start: Callable[..., Worker], case: str, contender: str = REPLICA) -> None:
        self._workers = [
            start(case, contender, environ=_environment(rank)) for rank in range(REPLICAS)
        ]
        self._pool = ThreadPoolExecutor(REPLICAS)

    def __enter__(self) -> Replicas:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in self._workers:
            worker.close()  # whoever is still asked has an answer then
        self._pool.shutdown()

    def ask(self, what: str, **details: Any) -> list[dict[str, Any]]:
        """Send all the same request; returns their answers by rank.

        Raises:
            WorkerFailed: If one of them ended instead of answering.
        """
        asked = [self._pool.submit(worker.ask, what, **details) for worker in self._workers]
        return [future.result() for future in asked]


def _environment(rank: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(REPLICAS),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(REPLICAS),
        "MASTER_ADDR": "",  # they are on one host, and meet through their common parent
        "MASTER_PORT": "",
    }
