"""Helpers of the ``test`` command of scripts: repeatability and gold files."""

from __future__ import annotations

import functools
import io
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pef_schema.atomic import write_atomically
from pef_schema.printable import say
from samba.errors import SambaError
from samba.sambatensor import to_torch
from samba.session.process import session
from samba.support.given import path_of
from samba.support.layout import bytes_text, created_line
from samba.tensor.device_memory import visible_memory
from samba.utils.checkpoint import read_pickled

__all__ = ["Different", "TestWithGold", "consistency_test"]

Named = Sequence[tuple[str, Any]]


class Different(SambaError, AssertionError):
    """Tensors that must be equal bit by bit are not.

    Args:
        what: What was compared.
        names: The tensors that differ.
        details: A sentence about each of them.
    """

    def __init__(self, *, what: str, names: Sequence[str], details: Sequence[str]) -> None:
        self.what, self.names = what, tuple(names)
        super().__init__(f"{what}: {len(names)} tensor(s) differ.\n" + "\n".join(details))


def consistency_test(*args: Any, **kwargs: Any) -> Callable[[Callable[..., Named]], Any]:
    """Makes a test run twice and checks that both runs give the same bits.

    Use it where nothing is random: dropout rates of 0, no stochastic rounding.

    Args:
        *args, **kwargs: Accepted.

    Returns:
        A decorator of a function ``test(args, model, inputs, outputs)`` that returns
        ``(name, tensor)`` pairs; the decorated function returns those of the first run.

    Raises:
        Different: When the function is called and its two runs differ.

    Example:
        >>> @consistency_test()
        ... def test(args, model, inputs, outputs):
        ...     return [("loss", torch.ones(2))]
        >>> test(None, None, None, None)[0][0]
        'loss'
    """

    def decorate(test: Callable[..., Named]) -> Callable[..., Named]:
        @functools.wraps(test)
        def twice(*test_args: Any, **test_kwargs: Any) -> Named:
            first = test(*test_args, **test_kwargs)
            copies = {name: to_torch(tensor).clone() for name, tensor in first}
            second = dict(test(*test_args, **test_kwargs))
            _compare(f"second run of {test.__name__}", copies, second)
            return first

        return twice

    return decorate


class TestWithGold:
    """Compares device memory with a gold file, bit by bit, or writes one.

    Args:
        args: The parsed arguments; ``gold_file_path`` names the file.
        name: Name of the app.
        model: The traced model.
        inputs: Accepted; the device keeps the inputs it has.
        optimizer: Accepted; its state is on the device too.
    """

    __test__ = False  # it is not a test case of pytest

    def __init__(
        self,
        args: Namespace,
        name: str,
        model: nn.Module,
        inputs: Any = None,
        optimizer: Any = None,
    ) -> None:
        self.path = Path(path_of(args.gold_file_path, "TestWithGold(args), args.gold_file_path"))
        self.name, self.model, self.inputs, self.optimizer = name, model, inputs, optimizer

    def test(self) -> None:
        """Runs the program once and compares weights, gradients and outputs.

        The first time, when there is no file yet, it is written.

        Raises:
            Different: A tensor differs from that of the file, or is in one of them only.
            BadCheckpoint: The file is damaged.
            SambaError: Nothing is traced, or the file cannot be written.
        """
        memory = visible_memory()
        outputs = self.model.output_tensors
        results = session.run(_as_traced(), outputs)
        tensors = {t.sn_name: t.torch() for t in results}
        for parameter in self.model.parameters():
            name = parameter.sn_name  # pyright: ignore[reportAttributeAccessIssue]  # the model is converted
            if memory is not None and memory.knows(name):
                tensors[name] = memory.read(name)
                if memory.has_grad(name):
                    tensors[f"{name}__grad"] = memory.read_grad(name)
        if not self.path.exists():
            start, data = time.perf_counter(), _saved(tensors)
            write_atomically(str(self.path), [data])
            seconds, then = time.perf_counter() - start, "test again to compare with it"
            size, what = bytes_text(len(data)), f"{self.name}: gold file"
            say(created_line(what, str(self.path), size=size, seconds=seconds, then=then))
            return
        gold = read_pickled(self.path, mmap=False)
        _compare(f"{self.name}: gold file {self.path}", gold, tensors)
        say(f"{self.name}: {len(gold)} tensors are those of {self.path}")


def _saved(tensors: Mapping[str, torch.Tensor]) -> bytes:
    buffer = io.BytesIO()
    torch.save(dict(tensors), buffer)
    return buffer.getvalue()


def _as_traced() -> dict[str, None] | None:
    """Nothing in the place of every input: what was traced is meant."""
    program = session.program
    if program is None:
        return None  # an error says so
    graph = program.graphs[0]
    return {graph.values[value].name: None for value in graph.inputs}


def _compare(what: str, gold: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    names, details = [], []
    for name in [*gold, *(n for n in own if n not in gold)]:
        problem = _difference(gold.get(name), own.get(name))
        if problem:
            names.append(name)
            details.append(f"  {name}: {problem}")
    if names:
        raise Different(what=what, names=names, details=details)


def _difference(gold: Any, own: Any) -> str:
    if gold is None or own is None:
        return "missing here" if own is None else "not expected"
    first, second = to_torch(gold), to_torch(own)
    if first.shape != second.shape or first.dtype != second.dtype:
        return f"{list(second.shape)} {second.dtype}, expected {list(first.shape)} {first.dtype}"
    same = (first == second) | (first.isnan() & second.isnan())
    if bool(same.all()):
        return ""
    count = int((~same).sum())
    largest = (first.double() - second.double()).abs()[~same].max().item()
    return f"{count} of {same.numel()} elements, by up to {largest:g}"
