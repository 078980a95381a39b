"""A model that only holds one weight, which moves between host and device."""

from __future__ import annotations

import tempfile
from collections.abc import Callable

import torch

import samba
from bench.nets import Holding
from samba import utils


def transfers(size: int) -> dict[str, Callable[[], object]]:
    """Load the model.

    Args:
        size: Elements of the weight.

    Returns:
        ``to_device`` and ``to_host``, which move it.
    """
    model = Holding(size)
    samba.from_torch_model_(model)
    given = samba.from_torch_tensor(torch.zeros(1), name="given")
    with tempfile.TemporaryDirectory() as folder:
        config = {"output_folder": folder, "pef_name": "holding", "inference": True}
        pef = samba.session.compile(model, (given,), None, name="holding", config_dict=config)
        utils.trace_graph(model, (given,), None, pef=pef)
    session = samba.session
    return {
        "to_device": lambda: session.to_rdu(model),
        "to_host": lambda: session.to_cpu(model, inplace=True),
    }
