"""TrainingCheckpoint: everything that a training goes on from, in one file of all replicas."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

import torch

from emulator.handler_errors import raise_error_of_handler
from emulator.held_signals import HELD
from pef_schema.atomic import write_atomically
from pef_schema.errors import SambaError
from pef_schema.printable import some_of
from samba.compiler.optimizers import as_optimizers
from samba.errors import ArgumentError, described, literal
from samba.profiler import PROFILER
from samba.sambatensor import to_torch
from samba.session.process import session
from samba.support.given import path_of
from samba.utils.checkpoint import BadCheckpoint, load_pickle
from samba.utils.misc import is_main_process, job_of_replicas

__all__ = ["Stateful", "TrainingCheckpoint"]

_FORMAT = "samba training checkpoint 1"
_KEYS = ("model", "optimizers", "hyperparameters", "random", "parts", "values")
_SHORT = 60


class Stateful(Protocol):
    """What has a state of its own: a sampler, a scheduler."""

    def state_dict(self) -> Any:
        """Its state."""
        ...

    def load_state_dict(self, state: Any, /) -> Any:
        """Take a state.

        Args:
            state: What :meth:`state_dict` has given.
        """
        ...


class TrainingCheckpoint:
    """A file from which a training goes on, with as many replicas as before or another number.

    It holds weights, buffers, optimizer states and their parameter groups, hyperparameters, the
    device's random streams, the states of the parts that are named, and values of the script. Rank
    0 writes it, as a whole or not at all; all replicas read it. What must be the same on all of
    them is compared.

    Args:
        path: The file; of several hosts, all must find the same one there.
        model: The model that ``trace_graph`` was given.
        optimizers: Its optimizers, as ``trace_graph`` was given them.
        parts: By name, what else has a state: ``sampler=``, ``scheduler=``.

    Raises:
        ArgumentError: If a part has no state.

    Example::

        sampler = utils.ElasticSampler(dataset, BATCH)
        utils.trace_graph(model, inputs, optimizer, pef=args.pef)
        checkpoint = utils.TrainingCheckpoint("last.pt", model, optimizer, sampler=sampler)
        checkpoint.load()
        for epoch in range(sampler.epoch, EPOCHS):
            sampler.set_epoch(epoch)
            for batch in DataLoader(dataset, BATCH, sampler=sampler, drop_last=True):
                samba.session.run(...)
                sampler.advance()
            checkpoint.save()
    """

    def __init__(
        self,
        path: str | PathLike[str],
        model: torch.nn.Module,
        optimizers: Any = None,
        **parts: Stateful,
    ) -> None:
        bad = [
            f"{name} ({type(part).__name__})"
            for name, part in parts.items()
            if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict"))
        ]
        if bad:
            raise ArgumentError(
                where="TrainingCheckpoint(**parts)",
                found="; ".join(bad),
                wanted="objects with state_dict() and load_state_dict()",
                hint="Give values of the script to save(), which load() returns.",
            )
        self._path = Path(path_of(path, "TrainingCheckpoint(path)"))
        self._model, self._parts = model, parts
        self._given = optimizers
        self._optimizers = as_optimizers(optimizers)

    def save(self, **values: Any) -> None:
        """Write the file; all replicas call this after the same run, and go on when it is there.

        Afterwards the model and the optimizers of rank 0 have the device's values, as after
        ``to_cpu``.

        Args:
            values: Further values, which :meth:`load` returns: numbers, texts, tensors, and lists
                and dicts of them. They are the same on all replicas.

        Raises:
            NotLoaded: If nothing is loaded.
            Disagreement: If replicas are not at the same place, or values differ.
            BadCheckpoint: If something cannot be written; an older file is then untouched.
            DataParallelError: If a replica does not come.
        """
        job = job_of_replicas("utils.TrainingCheckpoint")
        program = session.need_loaded("utils.TrainingCheckpoint.save()")
        parts = {name: part.state_dict() for name, part in self._parts.items()}
        rest = {
            "hyperparameters": program.runner().hyperparameters(),
            "random": session.get_rng_state(),
            "parts": parts,
            "values": values,
        }
        _refuse_unreadable(self._path, rest)
        with HELD:
            if job is not None:
                named = ("hyperparameters", "hyperparameters"), ("random", _STREAMS)
                facts = {told: _fact(rest[name]) for name, told in named}
                facts |= {name: _fact(state) for name, state in parts.items()}
                facts |= {f"value {name}": _fact(value) for name, value in values.items()}
                job.agree("TrainingCheckpoint.save()", facts, advice=_SAME_PLACE)
            program.writes.bring("TrainingCheckpoint.save()")
            problem = self._write(rest) if is_main_process() else ""
            if job is not None:
                problem = job.gather("TrainingCheckpoint written", problem.encode())[0].decode()
        if problem:
            raise BadCheckpoint(path=str(self._path), problem=f"not written: {problem}")

    def load(self) -> dict[str, Any] | None:
        """Go on from the file, if there is one; all replicas call this, after ``trace_graph``.

        Returns:
            The values that :meth:`save` was given; None if there is no file: nothing has changed
            then.

        Raises:
            NotLoaded: If nothing is loaded.
            BadCheckpoint: If it is no such file, or does not fit. The training is then as it was,
                except for parts that refuse their state.
            Disagreement: If replicas find different files.
            DataParallelError: If a replica does not come.
        """
        job = job_of_replicas("utils.TrainingCheckpoint")
        program = session.need_loaded("utils.TrainingCheckpoint.load()")
        digest = self._digest()
        if job is not None:
            facts = {f"file {self._path}": digest or "none"}
            job.agree("TrainingCheckpoint.load()", facts, advice=_SAME_FILE)
        if not digest:
            return None
        content = self._read()
        self._check(content, program.runner().hyperparameters())
        self._model.load_state_dict(content["model"])
        for optimizer, state in zip(self._optimizers, content["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        session.to_rdu(self._model, self._given)
        program.runner().set_hyperparameters(content["hyperparameters"])
        session.set_rng_state(content["random"])
        for name, part in self._parts.items():
            part.load_state_dict(content["parts"][name])
        step = content.get("step")  # None where the training was not followed, and in older files
        if PROFILER.follower is not None and step is not None:
            PROFILER.follower.go_on(_program(), step)
        return content["values"]

    def _write(self, rest: Mapping[str, Any]) -> str:
        """Write the file; says what stood in the way."""
        follower = PROFILER.follower
        try:
            session.to_cpu(self._model, self._given)
            whole = {
                "format": _FORMAT,
                "model": dict(self._model.state_dict()),
                "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
                **rest,
                "step": None if follower is None else follower.step_of(_program()),
            }
            buffer = io.BytesIO()
            torch.save(whole, buffer)
            chunks: Any = (buffer.getbuffer(),)
            write_atomically(str(self._path), chunks)
        except SambaError as error:  # the other replicas wait to hear of it
            return str(error)
        return ""

    def _digest(self) -> str:
        """What tells this file from others; empty if there is none."""
        try:
            with self._path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            return ""
        except OSError as error:
            return f"unreadable: {error.strerror}"

    def _read(self) -> dict[str, Any]:
        data = load_pickle(self._path)
        if not isinstance(data, dict) or data.get("format") != _FORMAT or set(_KEYS) - set(data):
            raise BadCheckpoint(
                path=str(self._path), problem="it is not a file of TrainingCheckpoint.save()"
            )
        return data

    def _check(self, data: Mapping[str, Any], hyperparameters: Mapping[str, float]) -> None:
        """Raise unless everything fits, with all that does not."""
        state = self._model.state_dict()
        problems = _differing("tensor", _forms(data["model"]), _forms(state))
        problems += _differing("part", dict.fromkeys(data["parts"]), dict.fromkeys(self._parts))
        problems += _differing(
            "hyperparameter", dict.fromkeys(data["hyperparameters"]), dict.fromkeys(hyperparameters)
        )
        groups = [[len(g["params"]) for g in o["param_groups"]] for o in data["optimizers"]]
        own = [[len(g["params"]) for g in o.param_groups] for o in self._optimizers]
        step = data.get("step")
        if step is not None and (type(step) is not int or step < 0):
            problems.append(f"step {literal(step)}, expected a whole number")
        if groups != own:
            problems.append(f"optimizers over {groups} parameters, expected {own}")
        if problems:
            raise BadCheckpoint(path=str(self._path), problem=some_of(problems, most=8))


def _program() -> str:
    return session.need_loaded("utils.TrainingCheckpoint").program.name


_SAME_PLACE = (
    "All ranks save after the same step, with the same values; a value of one rank alone, such as "
    "its own loss, is not for a checkpoint of all. A rank that evaluates alone sets its random "
    "streams back: session.set_rng_state(state) of session.get_rng_state() before."
)
_STREAMS = "random streams, which a run of one rank alone moves on"
_SAME_FILE = (
    "The path must lead all ranks to the same file: put it on a file system that all hosts share."
)


def _forms(state: Mapping[str, torch.Tensor]) -> dict[str, str]:
    return {key: f"{list(tensor.shape)} {tensor.dtype}" for key, tensor in state.items()}


def _differing(what: str, data: Mapping[str, Any], own: Mapping[str, Any]) -> list[str]:
    problems = [f"it has no {what} {literal(name)}" for name in own if name not in data]
    problems += [f"its {what} {literal(name)} is not known" for name in data if name not in own]
    return problems + [
        f"{what} {literal(name)} is {data[name]}, expected {own[name]}"
        for name in own
        if name in data and data[name] != own[name]
    ]


def _refuse_unreadable(path: Path, rest: Mapping[str, Any]) -> None:
    """Raise if something would be saved that no later process could load."""
    for kind in ("parts", "values"):
        for name, value in rest[kind].items():
            buffer = io.BytesIO()
            try:
                torch.save(value, buffer)
                buffer.seek(0)
                torch.load(buffer, weights_only=True)
            except Exception as error:
                raise_error_of_handler(error)
                first = (str(error).splitlines() or [""])[0]
                raise BadCheckpoint(
                    path=str(path),
                    problem=f"not written: {name} is {described(value)}, which could not be loaded "
                    f"again ({first}); expected numbers, strings, tensors, lists or dicts of them",
                ) from None


def _fact(value: Any) -> str:
    """The same text for the same value; short ones for people."""
    text = _text(value)
    return text if len(text) <= _SHORT else hashlib.sha256(text.encode()).hexdigest()[:16]


def _text(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        array = to_torch(value).detach().cpu().contiguous()
        raw = array.reshape(-1).view(torch.uint8).numpy().tobytes() if array.numel() else b""
        return f"{array.dtype} {list(array.shape)} {hashlib.sha256(raw).hexdigest()}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {_text(v)}" for key, v in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(_text(entry) for entry in value) + "]"
    return repr(value)
