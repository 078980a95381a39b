"""Runs the variants of a part of torch's operator database, in a process that may die of them.

``python -m tests.sweeps.op_worker 3/8`` prints a JSON object a line: what is tried, then how it
ended.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings

import torch

from tests.opinfo.catalog import load_entries
from tests.speed import keep_bookkeeping
from tests.sweeps.op_variants import End, run, samples_of, variants


def main(part: str) -> None:
    """Run every n-th entry from the i-th on.

    Args:
        part: ``i/n``.
    """
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    torch._logging.set_logs(all=logging.CRITICAL)  # pyright: ignore[reportPrivateImportUsage]  # torch documents it as torch._logging
    keep_bookkeeping()
    first, parts = (int(number) for number in part.split("/"))
    for entry in load_entries()[first::parts]:
        for sample in samples_of(entry, 1):
            for ways in variants(entry, sample):
                case = f"{entry.name}, {ways[0].what}"
                print(json.dumps({"case": case}), flush=True)
                found = run(entry, ways)
                ended = {"end": found.value} if isinstance(found, End) else {"outcome": found}
                print(json.dumps({"case": case, **ended}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
