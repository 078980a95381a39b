"""This project, used as a SambaFlow script uses it, and what the harness looks at inside."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import samba
from bench.case import Case, optimizer_of
from bench.peers import Prepared
from bench.peers.torch_step import to_torch
from samba import utils

if TYPE_CHECKING:
    from pef_schema.program import Program
    from samba.session.loaded import Loaded


class Script:
    """A case as a SambaFlow script has it: a converted model, its optimizer, and its inputs.

    Args:
        case: The case.
        model: Its model, which is converted.
    """

    def __init__(self, case: Case, model: nn.Module) -> None:
        samba.from_torch_model_(model)
        self._case, self._model = case, model
        self._optimizer = optimizer_of(samba.optim, case.optimizer, model)
        self._traced = self.tensors(to_torch(case.batches()[0]))

    def tensors(self, batch: tuple[torch.Tensor, ...]) -> list[samba.SambaTensor]:
        """The inputs of a step."""
        names = self._case.input_names
        return [samba.from_torch_tensor(t, name=n) for t, n in zip(batch, names, strict=True)]

    def compile(self, folder: str, *, data_parallel: bool = False) -> str:
        """Compile to a PEF, and return its path.

        Args:
            folder: Where it goes.
            data_parallel: Whether it is for replicas.
        """
        config = {
            "output_folder": folder,
            "pef_name": self._case.family,
            "optim_level": self._case.optim_level,
            "data_parallel": data_parallel,
        }
        family = self._case.family
        return samba.session.compile(
            self._model, self._traced, self._optimizer, name=family, config_dict=config
        )

    def load(self, pef: str) -> tuple[samba.SambaTensor, ...]:
        """Load a PEF of this model, and return the loss among its outputs."""
        outputs = utils.trace_graph(self._model, self._traced, self._optimizer, pef=pef)
        return outputs[:1]  # the other contenders leave the logits where they are, too


def step_of(script: Script, loss: tuple[samba.SambaTensor, ...]) -> Callable[..., float]:
    """The training step of a loaded case, which takes what else ``session.run`` may be told."""
    tensors, run, to_host = script.tensors, samba.session.run, samba.to_torch

    def step(
        batch: tuple[torch.Tensor, ...], hyper: Mapping[str, float] | None = None, **how: Any
    ) -> float:
        return to_host(run(tensors(batch), loss, hyper, **how)[0]).item()

    return step


def _compile_and_load(
    case: Case, model: nn.Module, *, data_parallel: bool = False
) -> tuple[Script, tuple[samba.SambaTensor, ...]]:
    """Compile a case to a PEF and load that; gives the loss among its outputs."""
    script = Script(case, model)
    with tempfile.TemporaryDirectory() as folder:
        return script, script.load(script.compile(folder, data_parallel=data_parallel))


def ours(case: Case, model: nn.Module) -> Prepared:
    """Return the conversion of a batch and the training step."""
    return to_torch, step_of(*_compile_and_load(case, model))


def replica(case: Case, model: nn.Module) -> Prepared:
    """The same as a script with ``--data-parallel`` has it."""
    step = step_of(*_compile_and_load(case, model, data_parallel=True))
    return to_torch, partial(
        step, data_parallel=True, reduce_on_rdu=True, data_parallel_mode="normal"
    )


def loaded() -> Loaded:
    """What the global session has loaded; its name depends on the revision that is measured."""
    session = samba.session
    need = getattr(session, "need_loaded", None) or session._need  # pyright: ignore[reportAttributeAccessIssue]  # of older revisions
    return need("bench")


def all_steps(program: Program) -> tuple[tuple[int, int], ...]:
    """The section and step of everything that a full run does, in order.

    The emulator has such a function, but not of the same name in every revision that is measured.
    """
    return tuple(
        (call.section, k)
        for call in program.schedules[0].calls
        for k in range(len(program.sections[call.section].steps))
    )
