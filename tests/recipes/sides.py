"""Who runs a recipe: plain torch, or the emulated device.

A recipe is what an ordinary user writes: a model, an optimizer and a loop. It takes a
:class:`Side` and asks it for a training step where a torch script would have ``zero_grad``,
``forward``, ``backward`` and ``step``, and a SambaFlow script ``samba.session.run``. Everything
else (schedulers, averages, checkpoints, what it looks at) is the recipe's own and the same for
both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import samba
import samba.utils as utils

RELATIVE = 2e-5
"""Float32 sums in another order differ by some ulps, and each update passes them on: at most 24
steps with rates up to 0.3 stay below this."""

Inputs = Mapping[str, Tensor]
MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]


class Run(ABC):
    """A model that a side trains.

    Attributes:
        model: The model.
        optimizer: Its optimizer, None if it has none.
    """

    model: nn.Module
    optimizer: Any

    @abstractmethod
    def step(self, inputs: Inputs) -> tuple[Tensor, ...]:
        """One training step; returns what ``forward`` does, without gradients."""

    @abstractmethod
    def clear(self) -> None:
        """Set gradients to zero."""

    @abstractmethod
    def backward(self, inputs: Inputs) -> tuple[Tensor, ...]:
        """Forward and backward, without an update."""

    @abstractmethod
    def update(self) -> None:
        """Let the optimizer take its step."""

    @abstractmethod
    def predict(self, inputs: Inputs) -> tuple[Tensor, ...]:
        """Forward alone, in the mode of training."""

    @abstractmethod
    def evaluate(self, inputs: Inputs) -> tuple[Tensor, ...]:
        """Forward alone, in evaluation mode, for a batch of any size."""

    @abstractmethod
    def weights(self) -> dict[str, Tensor]:
        """Parameters and buffers as they are now, by path."""


class Side(ABC):
    """Torch or the device, with what a recipe has noted.

    Args:
        folder: Where files may go.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notes: list[tuple[str, Tensor, float]] = []
        self._runs = 0

    @abstractmethod
    def train(
        self,
        model: nn.Module,
        inputs: Inputs,
        optimizer: MakeOptimizer | None = None,
        losses: Sequence[int] | None = None,
        accumulate: bool = False,
    ) -> Run:
        """Start to train a model: compile it and put it on the device.

        Args:
            model: The model; it is the recipe's to read afterwards.
            inputs: What ``forward`` takes, by name, in its order.
            optimizer: Makes the optimizer.
            losses: Outputs that are losses, by position; the scalars if None.
            accumulate: Whether :meth:`Run.backward` adds to the gradients that are there.
        """

    def follow(
        self,
        model: nn.Module,
        batches: Sequence[Inputs],
        optimizer: MakeOptimizer,
        *,
        losses: Sequence[int] | None = None,
        note_losses: bool = True,
    ) -> None:
        """Train a model on batches in turn, and remember all weights and buffers at the end.

        Args:
            model, optimizer, losses: As for :meth:`train`.
            batches: What ``forward`` takes in each step.
            note_losses: Whether the first result of each step is remembered, too.
        """
        run = self.train(model, batches[0], optimizer, losses)
        for batch in batches:
            loss = run.step(batch)[0]
            if note_losses:
                self.note("loss", loss)
        self.note_all(run)

    def note(self, name: str, value: Tensor, relative: float = RELATIVE) -> None:
        """Remember a result that must be the same on both sides.

        Args:
            name: What it is.
            value: The result.
            relative: How far it may be off, relative to its largest entry.
        """
        self.notes.append((name, value.detach().clone(), relative))

    def note_all(self, run: Run, relative: float = RELATIVE) -> None:
        """Remember all weights and buffers."""
        for name, value in run.weights().items():
            self.note(name, value, relative)


class Torch(Side):
    """Plain torch."""

    def train(
        self,
        model: nn.Module,
        inputs: Inputs,
        optimizer: MakeOptimizer | None = None,
        losses: Sequence[int] | None = None,
        accumulate: bool = False,
    ) -> Run:
        return _TorchRun(model, optimizer, losses)


class Device(Side):
    """The emulated device, by way of a PEF."""

    def train(
        self,
        model: nn.Module,
        inputs: Inputs,
        optimizer: MakeOptimizer | None = None,
        losses: Sequence[int] | None = None,
        accumulate: bool = False,
    ) -> Run:
        self._runs += 1
        folder = self.folder / f"run{self._runs}"
        return _DeviceRun(model, inputs, optimizer, losses, accumulate, folder)


class _TorchRun(Run):
    def __init__(
        self, model: nn.Module, make: MakeOptimizer | None, losses: Sequence[int] | None
    ) -> None:
        self.model = model
        self.optimizer = make(model) if make else None
        self._losses = losses

    def step(self, inputs: Inputs) -> tuple[Tensor, ...]:
        self.clear()
        results = self.backward(inputs)
        self.update()
        return results

    def clear(self) -> None:
        self.optimizer.zero_grad()

    def backward(self, inputs: Inputs) -> tuple[Tensor, ...]:
        results = _flat(self.model(**inputs))
        chosen = self._losses
        if chosen is None:
            chosen = [i for i, r in enumerate(results) if r.ndim == 0 and r.requires_grad]
        sum(results[i].sum() for i in chosen).backward()
        return tuple(result.detach() for result in results)

    def update(self) -> None:
        self.optimizer.step()

    def predict(self, inputs: Inputs) -> tuple[Tensor, ...]:
        with torch.no_grad():
            return _flat(self.model(**inputs))

    def evaluate(self, inputs: Inputs) -> tuple[Tensor, ...]:
        self.model.eval()
        results = self.predict(inputs)
        self.model.train()
        return results

    def weights(self) -> dict[str, Tensor]:
        return _state(self.model)


class _DeviceRun(Run):
    def __init__(
        self,
        model: nn.Module,
        inputs: Inputs,
        make: MakeOptimizer | None,
        losses: Sequence[int] | None,
        accumulate: bool,
        folder: Path,
    ) -> None:
        samba.from_torch_model_(model)
        self.model = model
        self.optimizer = make(model) if make else None
        given = self._given(inputs)
        pef = samba.session.compile(
            model,
            given,
            self.optimizer,
            loss_indices=losses,
            is_split_batch=accumulate,
            config_dict={"output_folder": str(folder), "pef_name": "recipe"},
        )
        utils.trace_graph(model, given, self.optimizer, pef=pef)
        self._evaluator: Any = None

    def step(self, inputs: Inputs) -> tuple[Tensor, ...]:
        return self._run(inputs)

    def clear(self) -> None:
        samba.session.run((), (), section_types=["zerograd"])

    def backward(self, inputs: Inputs) -> tuple[Tensor, ...]:
        return self._run(inputs, section_types=["fwd", "bckwd"])

    def update(self) -> None:
        samba.session.run((), (), section_types=["opt"])

    def predict(self, inputs: Inputs) -> tuple[Tensor, ...]:
        return self._run(inputs, section_types=["fwd"])

    def evaluate(self, inputs: Inputs) -> tuple[Tensor, ...]:
        self._evaluator = self._evaluator or samba.session.evaluator(self.model)
        results = self._evaluator.run(self._given(inputs))
        return tuple(samba.to_torch(result).clone() for result in results)

    def weights(self) -> dict[str, Tensor]:
        samba.session.to_cpu(self.model)
        return {name: samba.to_torch(t) for name, t in _state(self.model).items()}

    def _run(self, inputs: Inputs, **keywords: Any) -> tuple[Tensor, ...]:
        results = samba.session.run(self._given(inputs), self.model.output_tensors, **keywords)
        return tuple(samba.to_torch(result).clone() for result in results)

    def _given(self, inputs: Inputs) -> tuple[samba.SambaTensor, ...]:
        return tuple(samba.from_torch_tensor(t.clone(), name=n) for n, t in inputs.items())


def _flat(results: Any) -> tuple[Tensor, ...]:
    return tuple(torch.utils._pytree.tree_leaves(results))


def _state(model: nn.Module) -> dict[str, Tensor]:
    return dict([*model.named_parameters(), *model.named_buffers()])
