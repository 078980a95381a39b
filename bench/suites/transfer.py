"""Host to device and back."""

from __future__ import annotations

from bench.measurement import OURS, Results
from bench.suites import Settings

SIZES = {"4 KiB": 4 << 10, "1 MiB": 1 << 20, "64 MiB": 64 << 20}


def transfer(settings: Settings, results: Results) -> None:
    """Time transfers of arrays of several sizes."""
    settings.tell("transfer")
    for name in (OURS, "eager", "jax"):
        for label, nbytes in SIZES.items():
            with settings.worker("logreg-1", name) as worker:
                found = worker.ask("transfer", nbytes=nbytes, count=10 * settings.rounds)
            results.add("transfer", label, name, "to device", "s", found["to_device"])
            results.add("transfer", label, name, "to host", "s", found["to_host"])
