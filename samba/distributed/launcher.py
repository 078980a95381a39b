"""``python -m samba launch``: start the replicas of this host, without MPI.

The launcher passes the replicas' output on, and ends all of them when one fails. On one host it
serves the store at which they meet; of several hosts rank 0 does, and each has a launcher.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import IO, TextIO

from pef_schema.printable import say
from samba.distributed.addresses import LOOPBACK, listener
from samba.distributed.stores import serve

_GRACE_SECONDS = 6.0
"""How long the others may take to notice that a replica has failed, and to say so."""
_TERM_SECONDS = 4.0
"""How long a replica may take to end after SIGTERM."""
_PATIENT_SIGNALS = 2
"""How many signals are passed on; after another one the launcher no longer waits."""
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1
_STORE_WAIT = timedelta(seconds=60)


def launch(args: argparse.Namespace) -> int:
    """Start the replicas and wait for them.

    Args:
        args: As :mod:`samba.distributed.launch_command` parses them.

    Returns:
        0 if all end well, 128 + N for signal N, else the exit code of the first that fails.
    """
    command = [sys.executable, *(["-m"] if args.module else []), args.script, *args.arguments]
    if args.log_folder is not None:
        args.log_folder.mkdir(parents=True, exist_ok=True)
    replicas: list[_Replica] = []
    with _forwarding() as received, ExitStack() as stack:
        listening, port = None, args.master_port
        if args.nnodes == 1:
            listening = stack.enter_context(listener(LOOPBACK, 0))
            port = listening.getsockname()[1]
        try:
            for local_rank in range(args.replicas):
                rank = args.node_rank * args.replicas + local_rank
                env = _environment(args, rank, local_rank, port)
                replicas.append(_Replica(rank, command, env, args))
            # Served only now: starting processes while threads run is asking for trouble.
            # Who connects before waits at the listening socket.
            store = None
            if listening is not None:
                store = serve(listening, LOOPBACK, args.replicas, _STORE_WAIT)
            code = _watch(replicas, received, args.grace)
            del store
        finally:
            for replica in replicas:
                replica.end()
    return code


def _environment(args: argparse.Namespace, rank: int, local_rank: int, port: int) -> dict[str, str]:
    return os.environ | {
        "RANK": str(rank),
        "WORLD_SIZE": str(args.nnodes * args.replicas),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(args.replicas),
        "MASTER_ADDR": LOOPBACK if args.nnodes == 1 else args.master_addr,
        "MASTER_PORT": str(port),
        # What torchrun says as well. On one host the store is served already, and rank 0 is a
        # client too.
        "TORCHELASTIC_USE_AGENT_STORE": str(args.nnodes == 1),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "PYTHONUNBUFFERED": "1",
    }


class _Replica:
    """A process and the threads that pass its output on."""

    def __init__(
        self, rank: int, command: Sequence[str], env: dict[str, str], args: argparse.Namespace
    ) -> None:
        self.rank = rank
        self._log = None
        if args.log_folder is not None:
            self._log = (args.log_folder / f"rank{rank}.log").open("w", encoding="utf-8")
        self._process = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # a group of its own: its helpers end with it
            preexec_fn=_end_with_parent(),
        )
        prefix = "" if args.no_prefix else f"[{rank}] "
        assert self._process.stdout is not None
        assert self._process.stderr is not None  # both are pipes
        self._pipes = (self._process.stdout, self._process.stderr)
        self._threads = [
            threading.Thread(target=self._pass_on, args=(source, target, prefix), daemon=True)
            for source, target in zip(self._pipes, (sys.stdout, sys.stderr), strict=True)
        ]

    def listen(self) -> None:
        """Begin to pass output on."""
        for thread in self._threads:
            thread.start()

    def _pass_on(self, source: IO[str], target: TextIO, prefix: str) -> None:
        for line in source:
            with contextlib.suppress(OSError, ValueError):
                target.write(prefix + line if line.endswith("\n") else f"{prefix}{line}\n")
                target.flush()
            if self._log is not None:
                self._log.write(line)
                self._log.flush()

    @property
    def code(self) -> int | None:
        """Exit code of the process, 128 + N for signal N; None while it runs."""
        code = self._process.poll()
        return 128 - code if code is not None and code < 0 else code

    def send(self, number: int) -> None:
        """Send it a signal."""
        if self._process.poll() is None:
            self._process.send_signal(number)

    def end(self) -> None:
        """Kill it and what it started, and pass the rest of its output on."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for thread, pipe in zip(self._threads, self._pipes, strict=True):
            if thread.is_alive():
                thread.join(2)
            if not thread.is_alive():  # a thread that still reads would block the close
                pipe.close()
        if self._log is not None:
            self._log.close()


def _watch(replicas: Sequence[_Replica], received: list[int], grace: float) -> int:
    """Wait until all have ended; once one fails, or a signal comes, see to it that all do."""
    for replica in replicas:
        replica.listen()
    first = 0
    end = float("inf")
    next_signal = signal.SIGTERM
    passed_on = 0
    while True:
        running = any(replica.code is None for replica in replicas)
        while received:
            number = received.pop(0)
            for replica in replicas:
                replica.send(number)
            first = first or 128 + number
            passed_on += 1
            patience = grace if passed_on <= _PATIENT_SIGNALS else 0.0
            end, next_signal = time.monotonic() + patience, signal.SIGKILL
        failed = next((r for r in replicas if r.code not in (None, 0)), None)
        if failed is not None and end == float("inf"):
            first = first or failed.code or 1
            end = time.monotonic() + _GRACE_SECONDS
            say(f"launch: rank {failed.rank} ended with code {failed.code}", file=sys.stderr)
        if not running:
            return first
        if time.monotonic() >= end:
            for replica in replicas:
                replica.send(next_signal)
            end, next_signal = time.monotonic() + _TERM_SECONDS, signal.SIGKILL
        time.sleep(0.05)


@contextmanager
def _forwarding() -> Iterator[list[int]]:
    """Collect signals that would end this process."""
    received: list[int] = []
    before = {s: signal.signal(s, lambda number, _: received.append(number)) for s in _FORWARDED}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_with_parent():  # a function to run in the new process, or None
    """A hook that makes a new process end when this one is killed; None where the system cannot."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

    return ask
