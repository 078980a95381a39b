"""One contender on one case, in a process of its own:
``python -m bench.worker CASE CONTENDER THREADS [--small]``. A case ``pef:PATH`` is a user's PEF,
of which sections alone are timed.

Reads one JSON request a line from standard input and answers each with one line. ``what`` names
the function that answers, ``MODULE:NAME``, and the other keys are its arguments. Nothing is built
before the first request, so that it can be timed. End of input ends the process.

Whatever the libraries print goes to standard error.
"""

from __future__ import annotations

import json
import os
import pkgutil
import sys
from typing import TYPE_CHECKING, TextIO

from bench.models import ALL, SMALL
from bench.process import Contestant, path_of

if TYPE_CHECKING:
    from bench.suites.sections import PefContestant


def serve(contestant: Contestant | PefContestant, requests: TextIO, answers: TextIO) -> None:
    """Answer requests until there are no more.

    Args:
        contestant: Who is asked.
        requests: Where requests come from, one a line.
        answers: Where answers go, one a line.
    """
    for line in requests:
        request = json.loads(line)
        answer = pkgutil.resolve_name(request.pop("what"))
        answers.write(json.dumps(answer(contestant, **request)) + "\n")
        answers.flush()


def main(argv: list[str]) -> None:
    """Serve on standard input and output."""
    case, contender, threads, *small = argv
    if hasattr(os, "sched_setaffinity"):
        # XLA sizes its thread pool by the cores it may use; torch goes by OMP_NUM_THREADS.
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(threads)])
    # The answers keep the real standard output; prints of libraries must not get between.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(_contestant(case, contender, small=bool(small)), sys.stdin, answers)


def _contestant(case: str, contender: str, *, small: bool) -> Contestant | PefContestant:
    pef = path_of(case)
    if pef is None:
        return Contestant((SMALL if small else ALL)[case], contender)
    from bench.suites.sections import PefContestant  # noqa: PLC0415  # it loads jax; peers do not

    return PefContestant(pef)


if __name__ == "__main__":
    main(sys.argv[1:])
