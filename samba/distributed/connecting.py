"""What processes that have met agree on before they are a job: places, the engine, a client."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from emulator.replicas.comm.agreement import texts_unless_same
from emulator.replicas.comm.errors import DataParallelError, Disagreement, name_ranks
from emulator.replicas.comm.protocol import Communicator
from samba.distributed.addresses import Place, absent, at, choose_place, listener
from samba.distributed.rendezvous import Meeting
from samba.distributed.stores import PrefixStore, Store

__all__ = ["STORE_SECONDS", "agree_on_engine", "choose", "host_of", "own_client", "start_jax"]

STORE_SECONDS = 5
"""How long a call of a store may take, where waiting is no part of it."""


def host_of(store: Any) -> str:
    """The host of whoever serves a store, as this process was told it; empty if nobody knows."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return getattr(store, "host", "") or os.environ.get("MASTER_ADDR", "")


def choose(meeting: Meeting, rank: int, size: int, deadline: float) -> Place:
    """Find where a process listens, with the others.

    Args:
        meeting: Where they met.
        rank: Number of this process.
        size: How many there are.
        deadline: Seconds to wait for the others.

    Raises:
        DataParallelError: If some do not come; it names them.
    """
    store = PrefixStore("places", meeting.store)
    try:
        return choose_place(store, meeting.host, rank=rank, size=size)
    except DataParallelError:
        raise
    except RuntimeError as error:
        missing = absent(store, size)
        if missing:
            raise DataParallelError(
                f"rank {rank}: {name_ranks(missing)} of {size} replicas did not come within "
                f"{deadline:g} s. Start all of them, with the same MASTER_ADDR and MASTER_PORT; "
                "what one that failed has printed says more.",
                ranks=missing,
            ) from error
        ranks = (meeting.keeper,) if meeting.keeper not in (-1, rank) else ()
        gone = f" {name_ranks(ranks)}, which served the store, is gone." if ranks else ""
        raise DataParallelError(
            f"rank {rank}: {size} replicas did not come together.{gone} {error}", ranks=ranks
        ) from error


def agree_on_engine(control: Communicator, engine: str) -> None:
    """Compare engines before one starts: jax's would wait for all ranks, and abort the process."""
    said = texts_unless_same(control, engine.encode())
    if said is not None:
        engines = [name.decode() for name in said]
        raise Disagreement(when="joining the replicas", facts={"SN_DP_ENGINE": engines})


def own_client(store: Store) -> Any:
    """A client of a store that shares no connection with others, with short timeouts."""
    whole: Any = PrefixStore("watch", store)
    made = whole.clone()
    made.set_timeout(timedelta(seconds=STORE_SECONDS))
    return made


def start_jax(
    meeting: Meeting, place: Place, rank: int, size: int, deadline: float
) -> Communicator:
    """Start jax's engine, at an address that rank 0 tells the others.

    Args:
        meeting: Where they met.
        place: Where this process listens.
        rank: Its number.
        size: How many there are.
        deadline: Seconds that an operation may take.

    Raises:
        DataParallelError: If the replicas are on several hosts and nobody knows where they meet.
    """
    from emulator.replicas.comm import jaxmesh  # noqa: PLC0415  # jax, for this engine only

    if rank == 0:
        if not place.address:
            raise DataParallelError(
                "engine jax: the replicas are on several hosts, and nobody knows where they meet. "
                "Set MASTER_ADDR to an address of rank 0's host that the others reach.",
                ranks=(0,),
            )
        with listener(place.address, 0) as probe:
            meeting.store.set("jax", at(place.address, probe.getsockname()[1]))
    address = meeting.store.get("jax").decode()
    return jaxmesh.start(
        address,
        rank=rank,
        size=size,
        deadline=deadline,
        hostname=place.hostname or None,
        interface=place.interfaces[0] if place.interfaces else None,
    )
