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
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import IO, TextIO

from pef_schema.printable import say
from samba.distributed.environment import LAST_PORT

_SAVE_SECONDS = 30.0
"""How long replicas may take to end after a signal that was passed on: they finish the step that
they are in, and their scripts may save."""
_MASTER_PORT = 29500
"""torchrun's default."""

_GRACE_SECONDS = 6.0
"""How long the others may take to notice that a replica has failed, and to say so."""
_TERM_SECONDS = 4.0
"""How long a replica may take to end after SIGTERM."""
_PATIENT_SIGNALS = 2
"""How many signals are passed on; after another one the launcher no longer waits."""
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1
_STORE_WAIT = timedelta(seconds=60)


def run(argv: Sequence[str]) -> int:
    """Run ``launch``.

    Args:
        argv: Its arguments.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="python -m samba launch",
        description="Start replicas of a script on this host. The script must connect to the "
        "others, as parse_app_args does for run --data-parallel, and without it for run --n-chips "
        "N --tensor-parallel batch|weight: the processes then share the N chips of one program. "
        "Ends with the exit code of the first replica that fails: none is restarted; start the "
        "job again, with any number of replicas, to go on from its last checkpoint. On several "
        "hosts give each the same command with --nnodes, --master-addr and its own --node-rank.",
    )
    parser.add_argument(
        "-n",
        "--replicas",
        type=_whole_from(1),
        required=True,
        help="number of replicas on this host",
    )
    parser.add_argument(
        "--nnodes",
        type=_whole_from(1),
        default=1,
        metavar="N",
        help="number of hosts, each with a launcher (1)",
    )
    parser.add_argument(
        "--node-rank",
        type=_whole_from(0),
        default=0,
        metavar="N",
        help="number of this host, from 0 on",
    )
    parser.add_argument(
        "--master-addr", metavar="HOST", help="address of host 0 that the others can reach"
    )
    parser.add_argument(
        "--master-port",
        type=_whole_from(1),
        default=_MASTER_PORT,
        metavar="PORT",
        help="a free port of host 0 (%(default)d)",
    )
    parser.add_argument(
        "--log-folder",
        type=Path,
        help="folder in which to keep each replica's output as rank<N>.log",
    )
    parser.add_argument(
        "--no-prefix", action="store_true", help="do not put [rank] before lines of output"
    )
    parser.add_argument(
        "--grace",
        type=_seconds,
        default=_SAVE_SECONDS,
        metavar="SECONDS",
        help="how long replicas may take to end after Ctrl-C or SIGTERM, which are passed on to "
        "them (%(default)g)",
    )
    parser.add_argument(
        "-m", "--module", action="store_true", help="script is the name of a module"
    )
    parser.add_argument("script", help="the script")
    rest = parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    rest.required = False  # or an error would name it
    args = parser.parse_args(argv)
    if args.node_rank >= args.nnodes:
        parser.error(
            f"--node-rank {args.node_rank} of --nnodes {args.nnodes}: hosts count from 0 to "
            f"{args.nnodes - 1}"
        )
    if args.nnodes > 1 and not args.master_addr:
        parser.error(f"--nnodes {args.nnodes}: --master-addr must name host 0, on all hosts")
    if args.master_port > LAST_PORT:
        parser.error(f"--master-port {args.master_port}: ports end at {LAST_PORT}")
    if not args.module and not Path(args.script).exists():
        parser.exit(2, f"{parser.prog}: there is no file {Path(args.script).absolute()}\n")
    return _launch(args)


def _whole_from(least: int) -> Callable[[str], int]:
    """What makes a whole number of an option, if it is not below the least."""

    def number(text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} on")
        return int(text)

    return number


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return seconds


def _launch(args: argparse.Namespace) -> int:
    """Start the replicas and wait for them.

    Returns:
        0 if all end well, 128 + N for signal N, else the exit code of the first that fails.
    """
    from samba.distributed.addresses import LOOPBACK, listener  # noqa: PLC0415  # loads torch; help texts do not
    from samba.distributed.stores import serve  # noqa: PLC0415  # as above

    command = [sys.executable, *(["-m"] if args.module else []), args.script, *args.arguments]
    if args.log_folder is not None:
        args.log_folder.mkdir(parents=True, exist_ok=True)
    replicas: list[_Replica] = []
    with _forwarding() as received, ExitStack() as stack:
        listening, address = None, (args.master_addr, args.master_port)
        if args.nnodes == 1:
            listening = stack.enter_context(listener(LOOPBACK, 0))
            address = listening.getsockname()
        try:
            for local_rank in range(args.replicas):
                rank = args.node_rank * args.replicas + local_rank
                env = _environment(args, rank, local_rank, address)
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


def _environment(
    args: argparse.Namespace, rank: int, local_rank: int, address: tuple[str, int]
) -> dict[str, str]:
    host, port = address
    return os.environ | {
        "RANK": str(rank),
        "WORLD_SIZE": str(args.nnodes * args.replicas),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(args.replicas),
        "MASTER_ADDR": host,
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
