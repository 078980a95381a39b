"""One contender on one case, in a process of its own:
``python -m bench.worker CASE CONTENDER THREADS``.

Reads one JSON request a line from standard input and answers each with one line:

* ``{"steps": n}``: runs n steps; the answer holds ``seconds`` (all together) and ``losses``.
* end of input: ends.

Whatever the libraries print goes to standard error.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from typing import TextIO

from bench.models import CASES
from bench.peers import prepare


def serve(case_name: str, contender: str, requests: TextIO, answers: TextIO) -> None:
    """Answer requests until there are no more.

    Args:
        case_name: Key of ``CASES``.
        contender: Key of ``CONTENDERS``.
        requests: Where requests come from, one a line.
        answers: Where answers go, one a line.
    """
    case = CASES[case_name]
    convert, step = prepare(contender, case)
    batches = itertools.cycle([convert(batch) for batch in case.batches()])
    for line in requests:
        todo = list(itertools.islice(batches, json.loads(line)["steps"]))
        start = time.perf_counter()
        losses = [step(batch) for batch in todo]
        seconds = time.perf_counter() - start
        answers.write(json.dumps({"seconds": seconds, "losses": losses[:4]}) + "\n")
        answers.flush()


def main(argv: list[str]) -> None:
    """Serve on standard input and output."""
    case_name, contender, threads = argv
    if hasattr(os, "sched_setaffinity"):
        # XLA sizes its thread pool by the cores it may use; torch goes by OMP_NUM_THREADS.
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(threads)])
    # The answers keep the real standard output; prints of libraries must not get between.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(case_name, contender, sys.stdin, answers)


if __name__ == "__main__":
    main(sys.argv[1:])
