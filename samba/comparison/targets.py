"""What ``python -m samba compare`` is given: a script, or a function that makes a model."""

from __future__ import annotations

import argparse
import importlib
import runpy
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from pef_schema.atomic import check_outputs, write_atomically
from pef_schema.printable import say, say_text
from samba.argconf.parsed import looking_in
from samba.comparison.report import Comparison
from samba.comparison.walk import compare
from samba.errors import ArgumentError, SambaError
from samba.session import SambaSession
from samba.session.settings import CompileSettings, compile_settings
from samba.support.layout import bytes_text, created_line

_TROUBLE = 2


def compare_target(args: argparse.Namespace) -> int:
    """Compare the models of a target and print the report.

    Args:
        args: As :mod:`samba.comparison.command` parses them.

    Returns:
        The exit code.
    """
    torch.manual_seed(args.seed)
    try:
        check_outputs([None if args.json in ("", "-") else args.json])
        if _is_script(args.target):
            return _compare_app(args)
        return _report(_compare_factory(args), args)
    except SambaError as error:
        say_text(f"error: {error}", file=sys.stderr)
        return _TROUBLE


def _is_script(target: str) -> bool:
    return ":" not in target and (target.endswith(".py") or Path(target).exists())


def _report(comparison: Comparison, args: argparse.Namespace) -> int:
    if args.json == "-":
        say_text(comparison.to_json())
    else:
        say_text(comparison.text(all_rows=args.all))
        if args.json:
            start, data = time.perf_counter(), f"{comparison.to_json()}\n".encode()
            write_atomically(args.json, [data])
            seconds, size = time.perf_counter() - start, bytes_text(len(data))
            then = "docs/run.md says what it means"
            say(created_line("comparison", args.json, size=size, seconds=seconds, then=then))
    return 0 if comparison.ok else 1


# -- a function that makes a model ------------------------------------------


def _compare_factory(args: argparse.Namespace) -> Comparison:
    function = _factory(args.target)
    if args.args:
        raise _wrong(f"arguments {args.args}", "none: they are for scripts")
    try:
        result = function()
    except SambaError:
        raise
    except Exception as error:
        traceback.print_exc()
        raise _wrong(f"{args.target}() failed: {error}", "(model, inputs)") from error
    if not (
        isinstance(result, (tuple, list))
        and len(result) == 2
        and isinstance(result[0], torch.nn.Module)
    ):
        raise _wrong(
            f"{args.target}() returned {type(result).__name__}",
            "(model, inputs): a torch.nn.Module and what its forward() takes",
        )
    model, inputs = result
    return compare(
        model,
        inputs,
        inference=args.inference,
        backward=not args.forward,
        graphamp_preset=args.graphamp_preset,
        bf16_cast=args.bf16_cast,
    )


def _factory(target: str) -> Callable[[], Any]:
    place, _, name = target.rpartition(":")
    if not place or not name:
        raise _wrong(repr(target), "a script app.py, or module:function", _hint(target))
    try:
        function = _imported(place).get(name)
    except SystemExit as error:
        raise _wrong(
            f"{place} ended with exit code {error.code} when it was imported",
            *_only_defining(place),
        ) from None
    except ModuleNotFoundError as error:
        raise _wrong(f"no module {error.name!r}", f"{place} to be importable") from error
    except SambaError:
        raise
    except Exception as error:
        traceback.print_exc()
        raise _wrong(
            f"{place} failed when it was imported: {error}", *_only_defining(place)
        ) from error
    if not callable(function):
        raise _wrong(f"no function {name!r} in {place}", "a function that gives (model, inputs)")
    return function


def _imported(place: str) -> Mapping[str, Any]:
    """What a script or a module defines."""
    if place.endswith(".py"):
        path = _script(place)
        with _path_of(path):
            return runpy.run_path(str(path))
    with _path_of(Path.cwd() / "module"):
        return vars(importlib.import_module(place))


def _only_defining(place: str) -> tuple[str, str]:
    if not place.endswith(".py"):
        return "a module that only defines functions", ""
    return "a file that only defines functions", _arguments_too(place)


def _hint(target: str) -> str:
    return "" if Path(target).exists() else f"There is no file {target}."


# -- a script ---------------------------------------------------------------


def _compare_app(args: argparse.Namespace) -> int:
    path = _script(args.target)
    codes: list[int] = []

    def meet(model: torch.nn.Module, inputs: Any, settings: CompileSettings, losses: Any) -> None:
        try:
            comparison = compare(
                model,
                inputs,
                loss_indices=losses,
                inference=settings.inference or args.inference,
                backward=not args.forward,
                graphamp_preset=args.graphamp_preset or settings.arithmetic.preset.value,
                bf16_cast=args.bf16_cast or settings.arithmetic.cast.value,
            )
            codes.append(_report(comparison, args))
        except SambaError as error:
            say_text(f"error: {error}", file=sys.stderr)
            codes.append(_TROUBLE)
        raise SystemExit(codes[0])  # the script ends here, and an abexit keeps the code

    with _path_of(path), _instead_of_compiling(meet), looking_in():
        old, sys.argv = sys.argv, [str(path), *args.args]
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit as error:
            if codes:
                return codes[0]
            raise _wrong(f"{path} ended with exit code {error.code}", *_to_compile(path)) from None
        except Exception as error:
            traceback.print_exc()
            raise _wrong(f"{path} failed: {error}", *_to_compile(path)) from error
        finally:
            sys.argv = old
    raise _wrong(f"{path} ended without compiling a model", *_to_compile(path))


def _to_compile(path: Path) -> tuple[str, str]:
    return (
        "a script that calls samba.session.compile or utils.trace_graph",
        _arguments_too(path),
    )


def _arguments_too(path: Path | str) -> str:
    return (
        f"Give a script the arguments with which it compiles: python -m samba compare {path} "
        "compile ..."
    )


@contextmanager
def _instead_of_compiling(meet: Callable[..., None]) -> Iterator[None]:
    """Meanwhile, sessions compare where they would compile or load."""
    originals = {name: getattr(SambaSession, name) for name in ("compile", "load")}

    def compile_(self: Any, model: Any, inputs: Any, *args: Any, **more: Any) -> None:
        settings = compile_settings(
            name="compare",
            config=more.get("config_dict"),
            inference=more.get("inference"),
            is_split_batch=False,
        )
        losses = more.get("loss_indices", args[2] if len(args) > 2 else None)
        meet(model, inputs, settings, losses)

    def load(self: Any, model: Any, inputs: Any, optimizers: Any = None, **more: Any) -> None:
        settings = compile_settings(
            name="compare", config=more.get("config"), inference=None, is_split_batch=False
        )
        meet(model, inputs, settings, more.get("loss_indices"))

    for name, function in {"compile": compile_, "load": load}.items():
        setattr(SambaSession, name, function)
    try:
        yield
    finally:
        for name, function in originals.items():
            setattr(SambaSession, name, function)


def _script(place: str) -> Path:
    path = Path(place)
    if not path.is_file():
        raise _wrong(f"no file {place}", "a Python script")
    return path


@contextmanager
def _path_of(path: Path) -> Iterator[None]:
    """Imports find what lies beside a script, as when Python runs it."""
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


def _wrong(found: str, wanted: str, hint: str = "") -> ArgumentError:
    return ArgumentError(where="python -m samba compare", found=found, wanted=wanted, hint=hint)
