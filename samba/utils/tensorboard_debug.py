"""A report of the differences between results of the device and of the host."""

from __future__ import annotations

import importlib.util
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pef_schema.atomic import write_atomically
from samba.sambatensor import to_torch
from samba.session.process import session

__all__ = ["dump_accuracy_debug_info"]

FOLDER = Path("runs")
"""The folder of the reports, below the working folder."""


def dump_accuracy_debug_info(
    args: Namespace | None,
    model: nn.Module,
    inputs: Sequence[torch.Tensor | None] | Mapping[str, torch.Tensor | None],
    traced_outputs: Sequence[Any],
) -> Path:
    """Runs a model on host and device and writes how far their outputs differ.

    The report is ``runs/accuracy_debug.txt``: a line for each output with the largest and the
    mean absolute difference and the largest value. Where TensorBoard is installed, histograms
    of both sides go to the same folder as event files.

    Args:
        args: Accepted.
        model: The traced model; its host weights are those on the device.
        inputs: Inputs to run.
        traced_outputs: Its outputs.

    Returns:
        Path of the report.

    Raises:
        SambaError: Nothing is traced, or the report cannot be written.
    """
    results = session.run(inputs, traced_outputs, section_types=["FWD"])
    with torch.no_grad():
        gold = model(**inputs) if isinstance(inputs, Mapping) else model(*inputs)
    golds = gold if isinstance(gold, (tuple, list)) else (gold,)
    lines = [f"{'output':40} {'max difference':>15} {'mean difference':>15} {'max value':>12}"]
    pairs = []
    for traced, result, reference in zip(traced_outputs, results, golds, strict=True):
        first, second = to_torch(result).double(), to_torch(reference).detach().double()
        pairs.append((traced.sn_name, first, second))
        away, size = (first - second).abs(), second.abs()
        lines.append(
            f"{traced.sn_name:40} {away.max().item():15.6g} {away.mean().item():15.6g} "
            f"{size.max().item():12.6g}"
        )
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / "accuracy_debug.txt"
    write_atomically(str(path), ["\n".join([*lines, ""]).encode()])
    if importlib.util.find_spec("tensorboard") is not None:
        _write_events(pairs)
    return path


def _write_events(pairs: Sequence[tuple[str, torch.Tensor, torch.Tensor]]) -> None:
    from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415  # not everyone has it

    writer = SummaryWriter(str(FOLDER))
    for name, device, host in pairs:
        writer.add_histogram(f"{name}/device", device)
        writer.add_histogram(f"{name}/host", host)
        writer.add_histogram(f"{name}/difference", device - host)
    writer.close()
