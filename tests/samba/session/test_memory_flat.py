"""A loop of runs keeps neither memory nor threads."""

from __future__ import annotations

import os
import sys
import textwrap
from pathlib import Path

import pytest

from tests.processes import finished

SCRIPT = """
    import os, sys, threading
    import torch
    import sambaflow.samba as samba
    import sambaflow.samba.utils as utils
    from sambaflow.samba.sambaloader import SambaLoader

    class LogReg(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lin_layer = torch.nn.Linear(784, 10, bias=False)
            self.criterion = torch.nn.CrossEntropyLoss()

        def forward(self, image, label):
            out = self.lin_layer(image)
            return self.criterion(out, label), out

    def state():
        with open("/proc/self/status") as status:
            pages = next(line for line in status if line.startswith("VmRSS"))
        return int(pages.split()[1]) / 1024, len(os.listdir("/proc/self/task"))

    def batches(count):
        for _ in range(count):
            yield torch.randn(1, 784), torch.randint(10, (1,))

    names, runs, use_loader = ("image", "label"), int(sys.argv[1]), sys.argv[2] == "loader"
    model = samba.from_torch_model_(LogReg())
    inputs = [samba.from_torch_tensor(t, name=n) for t, n in zip(next(batches(1)), names)]
    optimizer = samba.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    pef = samba.session.compile(
        model, inputs, optimizer, name="logreg", config_dict={"output_folder": sys.argv[3]}
    )
    outputs = utils.trace_graph(model, inputs, optimizer, pef=pef)

    def loop(count):
        source = SambaLoader(batches(count), names) if use_loader else batches(count)
        for step, batch in enumerate(source):
            if not use_loader:
                batch = [samba.from_torch_tensor(t, name=n) for t, n in zip(batch, names)]
            loss, _ = samba.session.run(batch, outputs, hyperparam_dict={"lr": 0.1 / (step + 1)})
            loss.item()
        del source

    warmup = min(1000, runs // 2)
    loop(warmup)
    memory, threads = state()
    loop(runs - warmup)
    after, threads_after = state()
    left = [t.name for t in threading.enumerate() if t.name.startswith("SambaLoader")]
    print(after - memory, threads_after - threads, len(left))
"""


def grown(runs: int, feed: str, folder: Path) -> tuple[float, int, int]:
    """Growth after the first 1,000 runs in a process of its own: MB, threads, loader threads."""
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(runs), feed, str(folder)]
    done = finished(command, check=True, seconds=300, env={**os.environ})
    megabytes, threads, left = done.stdout.splitlines()[-1].split()
    return float(megabytes), int(threads), int(left)


@pytest.mark.parametrize(
    ("runs", "feed"),
    [
        (1500, "tensors"),
        pytest.param(10_000, "tensors", marks=pytest.mark.slow),
        pytest.param(10_000, "loader", marks=pytest.mark.slow),
    ],
)
def test_memory_and_threads_stay(runs, feed, tmp_path):
    megabytes, threads, left = grown(runs, feed, tmp_path)
    # Had each run kept as much as its own inputs, it would be 3 kB a run.
    assert abs(megabytes) < (5 if runs > 5000 else 1), megabytes
    assert (threads, left) == (0, 0)
