"""A small project of a user's, in files that a test can edit."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from samba.remembering.trace_key import trace_key
from samba.tracer.inputs import collect_inputs

FILES = {
    "settings.py": """
DEPTH = 2
SCALE = 0.5
TABLE = {"gain": 1.5, "shift": [0.25, 0.75]}
UNUSED = 3


class Config:
    width = 8

    def __init__(self, bias: float = 0.5, names: tuple = ("a", "b")) -> None:
        self.bias, self.names, self.extra = bias, names, {"keep": True}
""",
    "helpers.py": """
import functools
from dataclasses import dataclass
from enum import Enum

import torch

import settings


class Kind(Enum):
    SUM = 1
    MEAN = 2


@dataclass
class Part:
    factor: float = 1.25
    kind: Kind = Kind.SUM


def scaled(x, factor=2.0, *, shift=0.0):
    return x * factor * settings.SCALE + shift


def made(power):
    def run(x):
        return x**power
    return run


def plus(x, amount):
    return x + amount


squared = made(2)
added = functools.partial(plus, amount=0.125)
""",
    "net.py": """
import torch
import torch.nn.functional as F
from torch import nn

import helpers
import settings
from helpers import Part, scaled

FLAG = True


class Block(nn.Module):
    gain = 1.0

    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)
        self.rate = 0.5

    @property
    def double(self):
        return self.gain * 2

    def forward(self, x):
        return F.relu(self.norm(self.linear(x))) * self.double + self.rate


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        width = settings.Config.width
        self.config = settings.Config()
        self.blocks = nn.ModuleList(Block(width) for _ in range(settings.DEPTH))
        self.part = Part()
        self.mask = torch.ones(width)
        self.register_buffer("steps", torch.zeros(()))
        self.call = helpers.made(3)
        self.order = [0, 1]
        self.seen = {"x", "y"}

    def forward(self, x):
        for i in self.order:
            x = self.blocks[i](x)
        x = helpers.squared(scaled(x)) + helpers.added(x) + self.call(x)
        if FLAG and getattr(settings, "DEPTH") > 1:
            x = x * self.mask
        return (x * self.part.factor + self.config.bias * settings.TABLE["gain"]).sum()
""",
}


@contextmanager
def loaded(folder: Path, files: dict[str, str]) -> Iterator[ModuleType]:
    """The module ``net`` of a project that is written to a folder, while active."""
    for name, text in files.items():
        (folder / name).write_text(text)
    names = [name.removesuffix(".py") for name in files]
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield importlib.import_module("net")
    finally:
        sys.dont_write_bytecode = writes
        sys.path.remove(str(folder))
        for name in names:
            sys.modules.pop(name, None)


def key_of(
    net: ModuleType,
    edit: Callable[[Any, Any], Any] | None = None,
    *,
    x: Any = None,
    inference: bool = False,
) -> str:
    """The key of a project's model, after an edit of it or of its modules."""
    torch.manual_seed(0)
    model = net.Net()
    if edit is not None:
        edit(model, net)
    given = collect_inputs(model, torch.ones(2, 8) if x is None else x)
    return trace_key(model, given, inference=inference)


def key_or_refusal(net: ModuleType, edit: Callable[[Any, Any], Any] | None = None) -> str:
    """The key, or why there is none: then the model is traced."""
    try:
        return key_of(net, edit)
    except Exception as error:
        return f"{type(error).__name__} {error}"


def same(keys: dict[str, str]) -> list[str]:
    """Names of edits that have the key of an earlier one."""
    first: dict[str, str] = {}
    for name, key in keys.items():
        first.setdefault(key, name)
    return [f"{name}: {first[key]}" for name, key in keys.items() if first[key] != name]
