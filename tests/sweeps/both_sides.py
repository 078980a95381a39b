"""Models trained by torch and on the device, alone or many as one, and how the two compare."""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import samba
import samba.utils as utils
from pef_schema.errors import SambaError
from tests.opinfo.compare import difference
from tests.sweeps.tally import Outcome, Tally

Tensors = Mapping[str, torch.Tensor]


class _Names(logging.Handler):
    """Names of the deviations that the project tells."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.told: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        self.told.update(re.findall(r"\[deviation: ([\w-]+)\]$", record.getMessage()))


def train_both(
    make: Callable[[], nn.Module],
    inputs: Tensors,
    folder: Path,
    *,
    steps: int = 3,
    lr: float = 0.1,
    name: str = "sweep",
    tells: Collection[str] = (),
    config: Mapping[str, object] | None = None,
    runs: Sequence[Sequence[str]] = ((),),
) -> tuple[Outcome, str]:
    """Train a model for some steps by torch and on the device, with SGD and one batch.

    Args:
        make: Makes the model; ``forward`` returns a loss, or a tuple that begins with it.
        inputs: What it takes, by name and in order.
        folder: Where the PEF goes.
        steps: How many steps.
        lr: Learning rate.
        name: Name of the PEF.
        tells: Deviations that excuse other values when they are told.
        config: Settings of the compile beside folder and name.
        runs: The section types of each call of a step, one call with all of them if not given. The
            first call returns the results.

    Returns:
        The outcome, and what differed. Results of each step, and all parameters and buffers after
        the last, are compared at torch's tolerances for their dtypes.
    """
    torch.manual_seed(0)
    host = make()
    twin = copy.deepcopy(host)
    theirs, refusal = _host_steps(host, inputs, steps, lr)
    names = _Names()
    logger = logging.getLogger("samba")
    logger.addHandler(names)
    try:
        settings = {"output_folder": str(folder), "pef_name": name, **(config or {})}
        ours = _device_steps(twin, inputs, steps, lr, settings, runs)
    except SambaError as error:
        return (Outcome.EQUAL if refusal else Outcome.NAMED), str(error)
    except Exception as error:
        return Outcome.SILENT, f"{type(error).__name__}: {error}"
    finally:
        logger.removeHandler(names)
        samba.session.reset()
    other = Outcome.NAMED if names.told.intersection(tells) else Outcome.SILENT
    if refusal:
        return other, f"torch raises {refusal}"
    for what, want in theirs.items():
        text = difference(ours[what], want, None) if what in ours else "is not there"
        if text:
            return other, f"{what}: {text}"
    return Outcome.EQUAL, ""


def _host_steps(
    model: nn.Module, inputs: Tensors, steps: int, lr: float
) -> tuple[dict[str, torch.Tensor], str]:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    found: dict[str, torch.Tensor] = {}
    try:
        for step in range(steps):
            optimizer.zero_grad()
            results = model(*inputs.values())
            results = results if isinstance(results, tuple) else (results,)
            results[0].backward()
            optimizer.step()
            for i, result in enumerate(results):
                found[f"result {i} of step {step}"] = result.detach().clone()
    except Exception as error:
        return {}, f"{type(error).__name__}: {error}"
    for path, tensor in (*model.named_parameters(), *model.named_buffers()):
        found[path] = tensor.detach().clone()
    return found, ""


def _device_steps(
    model: nn.Module,
    inputs: Tensors,
    steps: int,
    lr: float,
    config: Mapping[str, object],
    runs: Sequence[Sequence[str]],
) -> dict[str, torch.Tensor]:
    samba.from_torch_model_(model)
    named = tuple(samba.from_torch_tensor(t, name=n) for n, t in inputs.items())
    optimizer = samba.optim.SGD(model.parameters(), lr=lr)
    pef = samba.session.compile(model, named, optimizer, config_dict=dict(config))
    outputs = utils.trace_graph(model, named, optimizer, pef=pef)
    found: dict[str, torch.Tensor] = {}
    for step in range(steps):
        results = samba.session.run(named, outputs, section_types=list(runs[0]))
        for types in runs[1:]:
            samba.session.run(section_types=list(types))
        for i, result in enumerate(results):
            found[f"result {i} of step {step}"] = samba.to_torch(result).detach().clone()
    samba.session.to_cpu(model)
    for path, tensor in (*model.named_parameters(), *model.named_buffers()):
        found[path] = samba.to_torch(tensor).detach().clone()
    return found


Make = Callable[[], nn.Module]


class _Together(nn.Module):
    def __init__(self, cases: list[nn.Module]) -> None:
        super().__init__()
        self.cases = nn.ModuleList(cases)

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        losses = torch.stack([case(*inputs) for case in self.cases])
        return losses.sum(), losses


def sweep_together(
    tally: Tally,
    cases: Mapping[str, Make],
    inputs: Tensors,
    folder: Path,
    *,
    size: int = 24,
    **how: Any,
) -> int:
    """Count the outcomes of many models, each of which returns a loss.

    Those that torch trains are trained several at a time; each of these is equal if all are, and if
    not, each half of them is tried, down to one. Those that torch refuses are trained alone.

    Args:
        tally: Where to count.
        cases: Makes the models, by name.
        inputs: What all of them take.
        folder: Where PEFs go.
        size: Models of a batch.
        how: As for :func:`train_both`.

    Returns:
        How many models were trained.
    """
    together = [name for name, make in cases.items() if _trains(make, inputs)]
    left = [[name] for name in cases if name not in set(together)]
    left += [together[start : start + size] for start in range(0, len(together), size)]
    trained = 0
    while left:
        names = left.pop()
        makes = [cases[name] for name in names]
        make = makes[0] if len(makes) == 1 else lambda: _Together([make() for make in makes])  # noqa: B023  # called at once
        outcome, text = train_both(make, inputs, folder, **how)
        trained += 1
        if len(names) == 1 or outcome is Outcome.EQUAL:
            for name in names:
                tally.add(name, outcome, text)
        else:
            middle = len(names) // 2
            left += [names[:middle], names[middle:]]
    return trained


def _trains(make: Make, inputs: Tensors) -> bool:
    """Whether torch runs two steps."""
    torch.manual_seed(0)
    model = make()
    try:
        for _ in range(2):
            model(*inputs.values()).backward()
    except Exception:
        return False
    return True
