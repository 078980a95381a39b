"""The meeting of replicas: a store that all of them reach, and no process of another job.

At the store they settle what they need before they are a job: places, the engine, a client.
"""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from emulator.replicas.comm.agreement import texts_unless_same
from emulator.replicas.comm.errors import DataParallelError, Disagreement, name_ranks
from emulator.replicas.comm.protocol import Communicator
from pef_schema.atomic import write_atomically
from samba.distributed.addresses import (
    LOOPBACK,
    Place,
    absent,
    at,
    choose_place,
    is_known,
    listener,
    meeting_host,
)
from samba.distributed.environment import Launch
from samba.distributed.errors import CannotListen
from samba.distributed.stores import HashStore, PrefixStore, Store, TCPStore, own_generation, serve

STORE_SECONDS = 5
"""How long a call of a store may take, where waiting is not part of it."""
_LAUNCHER_PROCESSES = (
    "hydra_pmi_proxy",
    "prterun",
    "prted",
    "orted",
    "slurmstepd",
    "flux-shell",
    "jsmd",
    "palsd",
    "mpispawn",
)
"""Processes that are an ancestor of all replicas of a job on this host, and of no other's."""
_CONNECT_SECONDS = 2.0
_ANSWER_SECONDS = 1.0
"""How much longer than for a connection is waited for an answer."""
_LOOK_SECONDS = 0.05
_NAME_SECONDS = 30.0
"""How long a host's name may be unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """A place where all replicas of a job are.

    Args:
        store: Their common store.
        host: Address of rank 0; empty if nobody knows it.
        keeper: The rank whose process serves the store, -1 if another process does.
    """

    store: Store
    host: str
    keeper: int


@contextmanager
def meet(launch: Launch, *, seconds: float) -> Iterator[Meeting]:
    """Meet the other replicas; inside, all of them must come together once.

    Args:
        launch: Which replica this is.
        seconds: How long to wait for the others.

    Returns:
        A context that yields the meeting. At its end the way to it is taken away, so that
        another program under the same launcher does not find it.

    Raises:
        CannotListen: If this host does not have the address that is asked for.
        DataParallelError: If the others do not come.
    """
    wait = timedelta(seconds=seconds)
    if launch.size == 1:
        yield Meeting(store=HashStore(), host=LOOPBACK, keeper=0)
    elif launch.address is not None:
        yield _signed_in(launch, _by_address(launch, launch.address, wait))
    else:
        path = _meeting_file(launch)
        try:
            yield _signed_in(launch, _by_file(launch, path, wait))
        finally:
            if launch.rank == 0:
                path.unlink(missing_ok=True)


def _signed_in(launch: Launch, meeting: Meeting) -> Meeting:
    """Enter this rank at the store, and refuse it if it cannot be one of those that are there."""
    store = PrefixStore("arrived", meeting.store)
    size = int(store.compare_set("size", "", str(launch.size)).decode())
    if size != launch.size:
        raise DataParallelError(
            f"rank {launch.rank} of {launch.size} ({launch.launcher}): the other ranks expect "
            f"{size} replicas. Give all of them the same number of replicas.",
            ranks=(launch.rank,),
        )
    if store.add(f"rank {launch.rank}", 1) > 1:
        raise DataParallelError(
            f"rank {launch.rank} of {launch.size} ({launch.launcher}) has already joined: each "
            "replica must be given a rank of its own.",
            ranks=(launch.rank,),
        )
    return meeting


def _by_address(launch: Launch, address: tuple[str, int], wait: timedelta) -> Meeting:
    port = address[1]
    served = outlives_processes()
    host = meeting_host(launch, served=served)
    try:
        if launch.rank == 0 and not served:
            with listener(host, port) as listening:
                store = serve(listening, host, launch.size, wait)
        else:
            _wait_for_name(launch, host, wait)
            store = _client(host, port, launch.size, wait)
        own: Store = PrefixStore("samba", store)
        if served:
            own = own_generation(
                own, rank=launch.rank, size=launch.size, seconds=wait.total_seconds()
            )
    except (CannotListen, DataParallelError):
        raise
    except RuntimeError as error:
        raise DataParallelError(
            f"rank {launch.rank} of {launch.size} ({launch.launcher}) got no answer at "
            f"{at(host, port)} within {wait.total_seconds():g} s. MASTER_ADDR and MASTER_PORT must "
            f"name a free port on the host of rank 0, and be the same for all. {error}",
            ranks=() if launch.rank == 0 else (0,),
        ) from error
    return Meeting(store=own, host=host, keeper=-1 if served else 0)


def outlives_processes() -> bool:
    """Whether the launcher of this process serves the store, and may start others at it later."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _wait_for_name(launch: Launch, host: str, wait: timedelta) -> None:
    """Wait for a host's name, which schedulers of containers may give a moment late."""
    seconds = min(_NAME_SECONDS, wait.total_seconds())
    end = time.monotonic() + seconds
    while not is_known(host):
        if time.monotonic() >= end:
            raise DataParallelError(
                f"rank {launch.rank} of {launch.size} ({launch.launcher}): MASTER_ADDR={host}: "
                f"{socket.gethostname()} cannot resolve that name after {seconds:g} s. Set "
                "MASTER_ADDR to an address of rank 0's host, or a name that all hosts resolve.",
                ranks=(0,),
            )
        time.sleep(_LOOK_SECONDS)


def _client(host: str, port: int, size: int | None, wait: timedelta) -> TCPStore:
    """Connect to a store; torch would wait without end for one that listens and never answers."""
    answers: queue.SimpleQueue[TCPStore | RuntimeError] = queue.SimpleQueue()

    def connect() -> None:
        try:
            answers.put(TCPStore(host, port, size, False, wait, wait_for_workers=False))
        except RuntimeError as error:
            answers.put(error)

    threading.Thread(target=connect, name="samba-rendezvous", daemon=True).start()
    try:
        answer = answers.get(timeout=wait.total_seconds() + _ANSWER_SECONDS)
    except queue.Empty:
        answer = RuntimeError("The program that listens there is not the replicas' store.")
    if isinstance(answer, RuntimeError):
        raise answer
    return answer


def _by_file(launch: Launch, path: Path, wait: timedelta) -> Meeting:
    if launch.rank == 0:
        with listener(LOOPBACK, 0) as listening:
            port = listening.getsockname()[1]
            store = serve(listening, LOOPBACK, launch.size, wait)
        token = secrets.token_hex(8)
        store.set("token", token)
        write_atomically(str(path), [f"{port} {token}\n".encode()])
        return Meeting(store=store, host=LOOPBACK, keeper=0)
    end = time.monotonic() + wait.total_seconds()
    while time.monotonic() < end:
        store = _visit(path)
        if store is not None:
            store.set_timeout(wait)
            return Meeting(store=store, host=LOOPBACK, keeper=0)
        time.sleep(_LOOK_SECONDS)
    raise DataParallelError(
        f"rank {launch.rank} of {launch.size} ({launch.launcher}) did not meet rank 0 on this "
        f"host within {wait.total_seconds():g} s ({path}). If the replicas are on several hosts, "
        "set MASTER_ADDR to the host of rank 0 and MASTER_PORT to a free port there.",
        ranks=(0,),
    )


def _visit(path: Path) -> Store | None:
    """The store that a file tells of; None if there is none, or a dead one or another one."""
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        port, token = path.read_text().split()
        with socket.create_connection((LOOPBACK, int(port)), timeout=_CONNECT_SECONDS):
            pass  # torch would go on trying, with a warning each time
        wait = timedelta(seconds=_CONNECT_SECONDS)
        store = _client(LOOPBACK, int(port), None, wait)
        if store.get("token").decode() == token:
            return store
    return None


def _meeting_file(launch: Launch) -> Path:
    if launch.local_size not in (0, launch.size):
        raise DataParallelError(
            f"the {launch.size} replicas ({launch.launcher}) are on several hosts, "
            f"{launch.local_size} of them here, but no address to meet at is set. Set MASTER_ADDR "
            "to the host of rank 0 and MASTER_PORT to a free port there, for all of them."
        )
    job = launch.job or _common_ancestor()
    name = f"rendezvous-{launch.launcher}-{job}-{launch.size}"
    return private_folder() / "".join(c if c.isalnum() or c in "-." else "_" for c in name)


def private_folder() -> Path:
    """A folder for temporary files that nobody else can write to.

    Raises:
        DataParallelError: If somebody else has made it.
    """
    folder = Path(tempfile.gettempdir()) / f"samba-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise DataParallelError(
            f"{folder} must be a folder of yours that only you can use; remove it, or set TMPDIR "
            "to another place."
        )
    return folder


def _common_ancestor() -> str:
    """The process that started all replicas of this host, told from any other ever."""
    chain: list[tuple[str, str]] = []
    pid = os.getppid()
    while pid > 1:
        try:
            name, rest = Path(f"/proc/{pid}/stat").read_text().split("(", 1)[1].rsplit(")", 1)
        except OSError:
            break
        fields = rest.split()
        chain.append((name, f"{pid}-{fields[19]}"))  # with its start time: pids are used again
        pid = int(fields[1])
    of_launcher = next((key for name, key in chain if name in _LAUNCHER_PROCESSES), None)
    return of_launcher or (chain[0][1] if chain else str(os.getppid()))


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
                "if one failed, its output says why.",
                ranks=missing,
            ) from error
        ranks = (meeting.keeper,) if meeting.keeper not in (-1, rank) else ()
        gone = f" {name_ranks(ranks)}, which served the store, is gone." if ranks else ""
        raise DataParallelError(
            f"rank {rank}: {size} replicas did not come together.{gone} {error}", ranks=ranks
        ) from error


def agree_on_engine(control: Communicator, engine: str) -> None:
    """Compare engines before one starts: jax's would wait for all ranks, and abort the process."""
    texts = texts_unless_same(control, engine.encode())
    if texts is not None:
        engines = [name.decode() for name in texts]
        raise Disagreement(when="joining the replicas", facts={"SN_DP_ENGINE": engines})


def own_client(store: Store) -> Any:
    """A client of a store that shares no connection with others, with short timeouts."""
    whole: Any = PrefixStore("watch", store)
    client = whole.clone()
    client.set_timeout(timedelta(seconds=STORE_SECONDS))
    return client


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
        DataParallelError: If the replicas are on several hosts and no address is known to meet at.
    """
    from emulator.replicas.comm import jaxmesh  # noqa: PLC0415  # jax, for this engine only

    if rank == 0:
        if not place.address:
            raise DataParallelError(
                "engine jax: the replicas are on several hosts, and no address is given to meet "
                "at. Set MASTER_ADDR to an address of rank 0's host that the others reach.",
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
