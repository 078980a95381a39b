"""Modules of ``torch.nn`` with their options, several in one model."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.sweeps.both_sides import train_both
from tests.sweeps.module_inputs import Call, calls_of
from tests.sweeps.module_options import Made, classes, needed, options_of
from tests.sweeps.tally import Outcome, Tally

__all__ = ["Case", "Several", "cases", "constructible", "run"]

_FAULTS = ("bag-frequencies",)
"""Deviations told where torch's own kernel is at fault, each with its row in docs/deviations.md."""

_PAIRS = 2
"""How many pairs of options are drawn for a class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One module, what it is made with, and how it is called.

    Args:
        cls: Its class.
        options: What it is made with.
        call: Which call of its class.
        training: Its mode.
    """

    cls: type[nn.Module]
    options: tuple[tuple[str, Any], ...]
    call: str
    training: bool

    def __str__(self) -> str:
        given = ", ".join(f"{key}={value!r}" for key, value in self.options)
        mode = "" if self.training else " in evaluation"
        called = f" called with {self.call}" if self.call else ""
        return f"{self.cls.__name__}({given}){called}{mode}"

    def make(self) -> nn.Module:
        """The module, with the same weights every time."""
        torch.manual_seed(3)
        options = {k: v.make() if isinstance(v, Made) else v for k, v in self.options}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # options that torch has replaced
            module = self.cls(**options)
            if isinstance(module, nn.modules.lazy.LazyModuleMixin):
                plan = self.plan()
                dtype = options.get("dtype")
                with torch.no_grad():
                    module(*(t.to(dtype) for t in plan.learned.values()))
        return module.train(self.training)

    def plan(self) -> Call:
        """What the module is called with."""
        return calls_of(self.cls, dict(self.options))[self.call]

    @property
    def draws(self) -> bool:
        """Whether it draws random numbers, which are others on the device."""
        options = dict(self.options)
        rate = next((options[k] for k in ("p", "dropout") if k in options), 0)
        named = "Dropout" in self.cls.__name__ or "dropout" in options
        return self.training and named and rate not in (0, 1)


class Part(nn.Module):
    """A module with its inputs: parameters those that learn, buffers the others."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        dtype = dict(case.options).get("dtype", torch.float32)
        self.module, plan = case.make(), case.plan()
        self.learned, self.given = nn.ParameterDict(), nn.Module()
        self.keys = {str(i): key for i, key in enumerate(plan.learned)}
        self.constants = {k: v for k, v in plan.given.items() if not isinstance(v, torch.Tensor)}
        self.buffer_keys: dict[str, int | str] = {}
        for i, tensor in enumerate(plan.learned.values()):
            self.learned[str(i)] = nn.Parameter(tensor.to(dtype).clone())
        for i, (key, value) in enumerate(plan.given.items()):
            if isinstance(value, torch.Tensor):
                value = value.to(dtype) if value.is_floating_point() else value
                self.given.register_buffer(f"b{i}", value.clone())
                self.buffer_keys[f"b{i}"] = key

    def forward(self) -> tuple[torch.Tensor, list[torch.Tensor]]:
        given = {
            **self.constants,
            **{k: self.given.get_buffer(n) for n, k in self.buffer_keys.items()},
        }
        # Not the parameter itself: modules may change what they are given in place.
        learned = {self.keys[name]: value * 1.0 for name, value in self.learned.items()}
        args, kwargs = _arguments(given, learned)
        results = [t if t.dim() else t.reshape(1) for t in _tensors(self.module(*args, **kwargs))]
        loss = sum(_weighted(t) for t in results if t.requires_grad)
        return torch.as_tensor(loss), results


class Several(nn.Module):
    """Several modules in one model: its loss is the sum of theirs."""

    def __init__(self, parts: Iterable[Case]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Part(case) for case in parts)
        for part, case in zip(self.parts, parts, strict=True):
            part.train(case.training)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, one: torch.Tensor) -> tuple[torch.Tensor, ...]:
        loss, found = self.scale * one, []
        for part in self.parts:
            own, results = part()
            loss = loss + own.float()
            found += results
        return (loss, *found)


def _weighted(result: torch.Tensor) -> torch.Tensor:
    """The mean of a result with a factor for each element."""
    factors = torch.linspace(0.5, 1.5, result.numel(), dtype=result.dtype)
    return (result * factors.reshape(result.shape)).sum() / max(result.numel(), 1)


def _arguments(given: Any, learned: Any) -> tuple[list[Any], dict[str, Any]]:
    found = {**given, **learned}
    args = [found[i] for i in range(len(found)) if i in found]
    kwargs = {k: v for k, v in found.items() if isinstance(k, str)}
    if "hx 0" in kwargs:
        args.append((kwargs.pop("hx 0"), kwargs.pop("hx 1")))
    return args, kwargs


def _tensors(result: Any) -> Iterator[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        yield result
    elif result is not None:
        for item in result:
            yield from _tensors(item)


def cases() -> list[Case]:
    """Every module as it is, each option and call by itself, and drawn pairs of options."""
    found: dict[str, Case] = {}
    for cls in classes():
        base, options = needed(cls), options_of(cls)
        made = [base]
        lazy = issubclass(cls, nn.modules.lazy.LazyModuleMixin)
        if lazy:
            options = {}  # it is another class once it has run
        made += [_with(base, name, value) for name, values in options.items() for value in values]
        rng = random.Random(cls.__name__)
        for _ in range(_PAIRS if len(options) > 1 else 0):
            chosen = dict(base)
            names = [n for n, values in options.items() if values]
            for name in sorted(rng.sample(names, min(2, len(names)))):
                chosen = _with(chosen, name, rng.choice(options[name]))
            made.append(chosen)
        for number, given in enumerate(made):
            for call in ("",) if number else calls_of(cls, given):
                for training in (True, False) if _has_modes(cls) and not lazy else (True,):
                    case = Case(cls=cls, options=tuple(given.items()), call=call, training=training)
                    if not case.draws:
                        found.setdefault(str(case), case)
    return list(found.values())


def _with(base: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    return {**base, **(value if isinstance(value, dict) else {name: value})}


_MODES = (
    *(nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm, nn.RNNBase),
    *(nn.modules.dropout._DropoutNd, nn.MultiheadAttention, nn.RReLU, nn.Transformer),
    *(nn.TransformerEncoder, nn.TransformerDecoder),
    *(nn.TransformerEncoderLayer, nn.TransformerDecoderLayer),
)


def _has_modes(cls: type[nn.Module]) -> bool:
    """Whether evaluation differs from training."""
    return issubclass(cls, _MODES)


def constructible(chosen: Iterable[Case]) -> list[Case]:
    """Those that torch makes: some options exclude each other."""
    found = []
    for case in chosen:
        try:
            Part(case)
        except Exception:
            continue
        found.append(case)
    return found


def run(chosen: Sequence[Case], folder: Path, tally: Tally, size: int) -> None:
    """Train cases by both sides, several in one model, and fewer where such a model differs.

    Args:
        chosen: The cases.
        folder: Where PEFs go.
        tally: What they end as.
        size: How many are in one model.
    """
    good, alone = [], []
    for case in chosen:
        (good if _runs(case) else alone).append(case)
    for start in range(0, len(good), size):
        _count(good[start : start + size], folder, tally)
    for case in alone:
        _count([case], folder, tally)


def _count(together: Sequence[Case], folder: Path, tally: Tally) -> None:
    """Train cases in one model, and if it is not equal each half of them, down to one case."""
    outcome, text = _both(together, folder)
    if len(together) == 1 or outcome is Outcome.EQUAL:
        for case in together:
            tally.add(str(case), outcome, text)
        return
    middle = len(together) // 2
    _count(together[:middle], folder, tally)
    _count(together[middle:], folder, tally)


def _runs(case: Case) -> bool:
    """Whether torch computes a case: it refuses some calls, and the device has to as well."""
    try:
        Several([case])(torch.ones(()))[0].backward()
    except Exception:
        return False
    return True


def _both(together: Sequence[Case], folder: Path) -> tuple[Outcome, str]:
    inputs = {"one": torch.ones(())}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's advice on options that it has replaced
        return train_both(lambda: Several(together), inputs, folder, lr=0.01, tells=_FAULTS)
