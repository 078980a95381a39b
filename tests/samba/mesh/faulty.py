"""One of several processes of a mesh, and what one of them may do wrong.

    python -m tests.samba.mesh.faulty FOLDER FAULT RANK

FAULT is kill, stop, kill-inside, stop-inside (a run that all have begun), raise, inputs (its own),
read (a weight, alone), pef (another one), chips (another number of them) or none. Which process
does it is RANK.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import sambaflow.samba as samba
import sambaflow.samba.utils as utils
from samba.distributed import job as jobs
from samba.distributed.mesh import MeshProcesses
from tests.samba.mesh.worker import ready

STEPS, AT = 6, 4


def misbehave(fault: str) -> None:
    """Do it."""
    print("now", time.time(), flush=True)
    end = signal.SIGKILL if fault.startswith("kill") else signal.SIGSTOP
    match fault:
        case "kill" | "stop":
            os.kill(os.getpid(), end)
        case "kill-inside" | "stop-inside":
            whole = MeshProcesses.run

            def run(self: MeshProcesses, operation: str, do: Any, given: Any) -> Any:
                del do
                return whole(self, operation, lambda: os.kill(os.getpid(), end), given)

            MeshProcesses.run = run
        case "raise":
            raise ValueError("something the script did wrong")


def main(folder: Path, fault: str, bad: int) -> None:
    """Train, or do what is wrong on the way."""
    mine = os.environ.get("RANK") == str(bad)
    model, inputs, optim = ready("wide")
    name = "other" if fault == "pef" and mine else "wide"
    chips = 4 if fault == "chips" and mine else 2
    config = {"n_chips": chips, "tensor_parallel": "weight"}
    utils.trace_graph(model, inputs, optim, pef=str(folder / f"{name}.pef"), config_dict=config)
    job = jobs.current()
    assert job is not None
    assert job.size == 2
    for step in range(1, STEPS + 1):
        if step == AT and mine:
            misbehave(fault)
            if fault == "read":
                samba.session.to_cpu(model)
        # In the first steps processes compare their inputs.
        own = (samba.randn(8, 512, name="x"),) if fault == "inputs" and mine else inputs
        samba.session.run(own, model.output_tensors)
    samba.session.to_cpu(model)
    print("trained", utils.is_main_process(), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
