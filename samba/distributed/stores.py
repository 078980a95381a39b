"""torch's stores, and the part of one that the processes of one start of a job share.

torchrun's elastic agent starts all processes again when one fails, and when a host joins or leaves.
Its store stays, with what earlier processes wrote, and nothing in their environment tells the
generations apart: a restart because of a host is not counted, and each agent counts for itself. So
rank 0, of which each generation has one, gives the generation a number, and tells it to the ranks
that ask now.
"""

from __future__ import annotations

import secrets
import socket
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from emulator.replicas.comm.errors import DataParallelError, name_ranks

if TYPE_CHECKING:
    # torch does not declare them as public.
    from torch._C._distributed_c10d import HashStore, PrefixStore, Store, TCPStore
else:
    from torch.distributed import HashStore, PrefixStore, Store, TCPStore

__all__ = ["HashStore", "PrefixStore", "Store", "TCPStore", "own_generation", "serve"]

_LOOK_SECONDS = 0.02
_LONGEST_LOOK_SECONDS = 0.5


def serve(listening: socket.socket, host: str, size: int, wait: timedelta) -> TCPStore:
    """Serve a store at a socket that listens: torch itself would listen at all addresses.

    Args:
        listening: The socket, which the store takes over.
        host: Where it listens.
        size: How many processes will come.
        wait: How long a call of the store may wait.
    """
    port = listening.getsockname()[1]
    return TCPStore(
        host, port, size, True, wait, wait_for_workers=False, master_listen_fd=listening.detach()
    )


def own_generation(store: Store, *, rank: int, size: int, seconds: float) -> Store:
    """The part of a store that the processes of this generation share, and no others.

    Args:
        store: A store that earlier generations may have written to.
        rank: Number of this process.
        size: How many there are.
        seconds: How long to wait for the others.

    Returns:
        A store that was empty when this generation came.

    Raises:
        DataParallelError: If others do not come; rank 0 raises it, and names them.
        RuntimeError: If rank 0 does not answer; the store's.
    """
    if rank == 0:
        number = store.add("generations", 1)
        own = PrefixStore(f"generation{number}", store)
        _welcome(store, own, number, size, seconds)
        return own
    token = secrets.token_hex(8)
    store.set(_hello(rank, size), token)
    number = int(store.get(f"welcome/{token}").decode())
    own = PrefixStore(f"generation{number}", store)
    own.set(f"here/{rank}", "")
    return own


def _hello(rank: int, size: int) -> str:
    """Where a process asks; one of another size is none of this generation."""
    return f"hello/{size}/{rank}"


def _welcome(store: Store, own: Store, number: int, size: int, seconds: float) -> None:
    """Tell all others the number; an answer to a rank of an earlier generation is never read."""
    end, pause = time.monotonic() + seconds, _LOOK_SECONDS
    missing = list(range(1, size))
    answered: dict[int, bytes] = {}
    while missing:
        for rank in missing:
            key = _hello(rank, size)
            if store.check([key]) and (token := store.get(key)) != answered.get(rank):
                store.set(f"welcome/{token.decode()}", str(number))
                answered[rank] = token
        missing = [rank for rank in missing if not own.check([f"here/{rank}"])]
        if missing and time.monotonic() > end:
            raise DataParallelError(
                f"rank 0: {name_ranks(missing)} of {size} replicas did not come within "
                f"{seconds:g} s. If one failed, its output says why.",
                ranks=missing,
            )
        time.sleep(pause if missing else 0)
        pause = min(1.2 * pause, _LONGEST_LOOK_SECONDS)
