"""The command line of launches: ``python -m samba launch``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from samba.distributed.environment import LAST_PORT

_SAVE_SECONDS = 30.0
"""How long replicas may take to end after a signal that was passed on: they finish the step that
they are in, and their scripts may save."""
_MASTER_PORT = 29500
"""torchrun's default."""


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
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
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
    from samba.distributed.launcher import launch  # noqa: PLC0415  # loads torch; help texts do not

    return launch(args)


def _whole_from(least: int) -> Callable[[str], int]:
    """What makes a whole number of an option, if it is not below the least."""

    def number(text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} on")
        return int(text)

    return number


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return seconds
