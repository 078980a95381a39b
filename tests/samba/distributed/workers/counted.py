"""A replica that joins, loads and trains, and tells what it sent through gloo on the way.

``python -m tests.samba.distributed.workers.counted FOLDER``; the last line is JSON: for each part
of the way, how often each collective was called.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from samba.distributed import job as jobs
from samba.distributed.gloo import TorchGloo
from tests.samba.distributed.worlds import compiled, share_of

_call = TorchGloo._call
_parts: dict[str, Counter[str]] = {}


def _counting(self: TorchGloo, operation: str, *args: Any, **keywords: Any) -> None:
    next(reversed(_parts.values()))[operation] += 1
    _call(self, operation, *args, **keywords)


def main(folder: Path) -> None:
    """Do what every data parallel script does."""
    TorchGloo._call = _counting
    _parts["joining"] = Counter()
    job = jobs.start()
    assert job is not None
    _parts["loading"] = Counter()
    scene = compiled(folder)
    scene.trace()
    for step in range(3):
        _parts[f"step {step}"] = Counter()
        scene.run(share_of(job, step), data_parallel=True)
    print(json.dumps(_parts))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
