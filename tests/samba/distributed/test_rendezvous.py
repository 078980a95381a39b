"""Where replicas meet; two ranks are two stores in one process here."""

from __future__ import annotations

import socket
import sys
import threading
import time
from pathlib import Path

import pytest

from emulator.replicas.comm.errors import DataParallelError
from samba.distributed import rendezvous
from samba.distributed.environment import Launch
from samba.distributed.rendezvous import meet, private_folder
from tests.samba.distributed.processes import free_port, run_replicas


def launch(rank: int, **more) -> Launch:
    facts = {"local_size": 2, "job": "test-of-rendezvous", **more}
    return Launch(launcher="mpich", rank=rank, size=2, local_rank=rank, **facts)


def late(found: Launch):
    """Meet somebody who does not come."""
    return meet(found, seconds=0.5)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place for meeting points that no other job uses."""
    monkeypatch.setattr(rendezvous.tempfile, "gettempdir", lambda: str(tmp_path))
    return tmp_path


def test_two_ranks_of_a_host_meet_and_leave_nothing(folder):
    got = []

    def second() -> None:
        with meet(launch(1), seconds=20) as meeting:
            got.append(meeting.store.get("from 0"))
            meeting.store.set("from 1", "there")

    thread = threading.Thread(target=second)
    thread.start()
    with meet(launch(0), seconds=20) as meeting:
        meeting.store.set("from 0", "here")
        assert meeting.store.get("from 1") == b"there"
        assert meeting.keeper == 0
        assert list(private_folder().iterdir())
    thread.join(20)
    assert got == [b"here"]
    assert not list(private_folder().iterdir())


def test_what_a_dead_job_left_is_no_meeting_point():
    path = rendezvous._meeting_file(launch(1))
    path.write_text(f"{free_port()} token")
    with pytest.raises(DataParallelError, match="did not meet rank 0") as caught, late(launch(1)):
        pass
    assert caught.value.ranks == (0,)


def test_nobody_at_the_address():
    lonely = launch(1, address=("127.0.0.1", free_port()))
    with pytest.raises(DataParallelError, match="got no answer at"), late(lonely):
        pass


def test_somebody_at_the_address_who_never_answers():
    """torch's own client would wait for as long as the other program runs."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        lonely = launch(1, address=silent.getsockname())
        start = time.monotonic()
        wanted = pytest.raises(DataParallelError, match=r"got no answer at .* is not the replicas'")
        with wanted as caught, late(lonely):
            pass
        assert time.monotonic() - start < 20
        assert caught.value.ranks == (0,)
        silent.accept()[0].close()  # the thread that waits ends with it
        for thread in threading.enumerate():
            if thread.name == "samba-rendezvous":
                thread.join(20)


def test_a_rank_that_is_given_twice_says_so():
    address = "127.0.0.1", free_port()
    with meet(launch(0, address=address), seconds=20) as _first:
        with meet(launch(1, address=address), seconds=20):
            pass
        again = meet(launch(1, address=address), seconds=20)
        with pytest.raises(DataParallelError, match=r"rank 1 of 2 .* has already joined"), again:
            pass


def test_another_number_of_replicas_says_so():
    address = "127.0.0.1", free_port()
    with meet(launch(0, address=address), seconds=20) as _first:
        other = Launch(
            launcher="torch", rank=2, size=3, local_rank=2, local_size=3, address=address
        )
        wanted = pytest.raises(DataParallelError, match=r"rank 2 of 3 .* the other ranks expect 2")
        with wanted as caught, meet(other, seconds=20):
            pass
        assert caught.value.ranks == (2,)


_HOLDS = """
import threading, time
import numpy as np
from samba.distributed import gloo, job

agree = job.agree_on_engine

def slow_gloo(*args):
    held = [gloo._lend(np.zeros(1))]
    threading.Thread(target=lambda: (time.sleep(0.5), held.clear())).start()
    agree(*args)

job.agree_on_engine = slow_gloo
try:
    job.start()
finally:
    print("held" if any(ref() is not None for ref in gloo._lent) else "let go")
"""


def test_replicas_agree_on_an_engine_before_one_starts():
    """jax's waits for all ranks, and aborts the process when they do not come.

    Who disagrees waits until gloo has let go: its threads ask for the interpreter's lock then, and
    at the interpreter's end that aborts.
    """
    command = [sys.executable, "-c", _HOLDS]
    env, own = {"CCL_TIMEOUT": "40"}, {1: {"SN_DP_ENGINE": "jax"}}
    for end in run_replicas(2, command, seconds=60, env=env, own=own):
        assert end.out == "let go\n", end.err
        assert end.code == 1, end.err
        assert "Disagreement" in end.err
        assert "SN_DP_ENGINE: rank 1: jax" in end.err


def test_several_hosts_need_an_address():
    with pytest.raises(DataParallelError, match="MASTER_ADDR"), late(launch(0, local_size=1)):
        pass


def test_another_users_folder_is_not_used(folder):
    (folder / f"samba-{rendezvous.os.getuid()}").mkdir(mode=0o777)
    (folder / f"samba-{rendezvous.os.getuid()}").chmod(0o777)
    with pytest.raises(DataParallelError, match="only you can use"):
        private_folder()


def test_jobs_have_files_of_their_own():
    first, second = launch(0), launch(0, job="another")
    assert rendezvous._meeting_file(first) != rendezvous._meeting_file(second)
    assert rendezvous._meeting_file(first) == rendezvous._meeting_file(launch(1))
