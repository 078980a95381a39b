"""Texts of a file that would steer a terminal, in every field, through every command."""

from __future__ import annotations

import argparse
import dataclasses
import json
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import emulator.__main__ as cli
from emulator.device import Device
from pef_schema import PefError, Program, SambaError, decode
from samba.compiler.build import build_program
from samba.compiler.forms.listing import pef_log
from samba.compiler.sections import CompileOptions
from tests.models.zoo import ZOO
from tests.pef_schema import samples
from tests.pef_schema.forge import encode_unchecked
from tests.terminal import NAME, TEXT, foreign
from tests.tracing import trace

Field = tuple[str, str]
"""A class of the schema and its field."""


def texts(item: Any, change: Callable[[Field, str], str], field: Field = ("", "")) -> Any:
    """A program with each of its texts changed."""
    if isinstance(item, str):
        return change(field, item)
    if isinstance(item, tuple):
        return tuple(texts(part, change, field) for part in item)
    if dataclasses.is_dataclass(item):
        made = {
            f.name: texts(getattr(item, f.name), change, (type(item).__name__, f.name))
            for f in dataclasses.fields(item)
        }
        return dataclasses.replace(item, **made)
    return item


def fields_of(program: Program) -> set[Field]:
    """Fields of the schema that hold text in a program."""
    found: set[Field] = set()
    texts(program, lambda field, text: (found.add(field), text)[1])
    return found


PROGRAMS = {"training": samples.training(), "inference": samples.inference()}
FIELDS = sorted({field for program in PROGRAMS.values() for field in fields_of(program)})


def commands() -> Iterator[list[str]]:
    """Every command of the parser; with ``--json`` too where it has that."""
    for action in cli._parser()._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, parser in action.choices.items():
                yield [name]
                if "--json" in parser._option_string_actions:
                    yield [name, "--json"]


def test_the_commands_are_found() -> None:
    assert {command[0] for command in commands()} >= {"run", "inspect", "verify"}
    assert {("Node", "module"), ("Node", "source"), ("Region", "name"), ("Program", "metadata")} < {
        *FIELDS
    }


def shown_by_commands(path: Path, capsys: pytest.CaptureFixture[str], *more: str) -> list[int]:
    """Run every command over a PEF and look at what it prints; their exit codes."""
    codes = []
    for command in commands():
        codes.append(cli.main([*command, str(path), *(more if command[0] == "run" else ())]))
        captured = capsys.readouterr()
        assert not foreign(captured.out + captured.err), command
        if "--json" in command and not codes[-1]:
            json.loads(captured.out)
    return codes


@pytest.mark.parametrize("text", [NAME, TEXT], ids=["name", "text"])
@pytest.mark.parametrize("field", FIELDS, ids=".".join)
def test_no_field_reaches_the_terminal_as_it_is(
    field: Field, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever a command says of the file, and whatever error it ends in."""
    for name, program in PROGRAMS.items():
        forged = texts(program, lambda f, t: t + text if f == field else t)
        path = tmp_path / f"{name}.pef"
        path.write_bytes(encode_unchecked(forged))
        shown_by_commands(path, capsys)
        assert not foreign(pef_log(forged))
        try:
            decode(path.read_bytes(), path=path)
        except PefError as error:
            assert not foreign(str(error) + repr(error))
            assert not foreign("".join(traceback.format_exception_only(error)))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Program]:
    """A PEF that runs, with such text wherever a PEF may have it."""
    model, inputs = ZOO["mlp"].model(), ZOO["mlp"].inputs()
    torch.manual_seed(0)
    options = CompileOptions(name="mlp", metadata=(("key", "value"),))
    program = build_program(trace(model, inputs), [], options)

    def change(field: Field, text: str) -> str:
        if field in {("Node", "op"), ("Node", "kwargs"), ("Program", "mapping")}:
            return text
        if field in {("Node", "args"), ("Optimizer", "argins"), ("Optimizer", "options")}:
            return text
        free = {("Node", "module"), ("Node", "source")}
        return text + (TEXT if field in free else NAME)

    folder = tmp_path_factory.mktemp("hostile")
    program = texts(program, change)
    (folder / "net.pef").write_bytes(encode_unchecked(program))
    names = {"x": inputs[0].numpy(), "y": inputs[1].numpy()}
    np.savez(folder / "inputs.npz", **{k + NAME: v for k, v in names.items()})
    np.savez(folder / "wrong.npz", **{k + NAME: np.zeros(7, np.float32) for k in names})
    np.savez(folder / "unknown.npz", **{f"z{TEXT.replace(chr(0), '')}": np.zeros(7)})
    np.savez(folder / "double.npz", **{"x" + NAME: names["x"].astype(np.float64)})
    (folder / "no.npz").write_bytes(TEXT.encode())
    return folder, program


def test_a_pef_that_runs_is_shown_escaped(
    running: tuple[Path, Program], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, program = running
    assert shown_by_commands(folder / "net.pef", capsys, str(folder / "inputs.npz")) == [0] * len(
        list(commands())
    )
    assert not foreign(pef_log(program))
    cli.main(["inspect", str(folder / "net.pef")])
    assert "\\u202e" in capsys.readouterr().out


@pytest.mark.parametrize("npz", ["wrong", "unknown", "double", "no", "absent\x1b[31m\u202e"])
def test_errors_over_arrays_are_shown_escaped(
    running: tuple[Path, Program], npz: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names in the PEF, names in the archive, and its own name."""
    folder, _ = running
    assert cli.main(["run", str(folder / "net.pef"), str(folder / f"{npz}.npz")]) == 1
    assert not foreign(capsys.readouterr().err)
    assert cli.main(["run", str(folder / "net.pef"), "--section-types", "\x1b[31m"]) == 1
    assert cli.main(["run", str(folder / "net.pef"), "--graph", "\x1b[31m"]) == 2
    assert cli.main(["run", str(folder / "net.pef")]) == 1
    assert not foreign(capsys.readouterr().err)


def test_a_name_makes_no_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    """A line end in a text of the file does not look like a line of the command's."""
    program = samples.inference()
    forged = dataclasses.replace(program, name="net\nother.pef: good")
    cli._verify(argparse.Namespace(pef="net.pef"), forged)
    cli._inspect(argparse.Namespace(json=False), forged)
    assert "other.pef: good" not in capsys.readouterr().out.splitlines()


def test_errors_of_the_device_keep_names_as_they_are(running: tuple[Path, Program]) -> None:
    _, program = running
    with pytest.raises(SambaError) as caught:
        Device(program).region_of(TEXT)
    assert caught.value.name == TEXT
    assert not foreign(str(caught.value))
