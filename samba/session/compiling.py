"""Compile a model into a PEF with its log."""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from emulator.costs.description import compiled_stats, describe
from pef_schema import write_pef
from pef_schema.atomic import write_atomically
from pef_schema.errors import PefUnwritable, quoted
from pef_schema.printable import json_text, say
from pef_schema.program import Program
from pef_schema.verify import verify
from samba.argconf.parsed import following_command, last_parsed_args
from samba.compiler.build import build_program
from samba.compiler.forms.graphs import as_dot, graphs_as_dict
from samba.compiler.forms.listing import pef_log
from samba.compiler.gradient_flow import with_kept_state
from samba.compiler.losses import doubtful_losses, losses_line, lost_losses
from samba.compiler.optimizers import as_optimizers, lost_copies
from samba.compiler.rounding import apply_arithmetic
from samba.remembering.memory import open_memory
from samba.session.settings import CompileSettings, loss_index_tuple
from samba.session.start_line import tell_start
from samba.support.autocast import AUTOCAST, autocast_in_force
from samba.support.deviations import tell
from samba.support.given import mapping_of
from samba.support.layout import bytes_text, created_line, seconds_text
from samba.support.progress import stages
from samba.tracer.capture import trace_model
from samba.tracer.inputs import collect_inputs
from samba.tracer.trace_cache import keeper_of_trace
from samba.tracer.traced import Traced


def compile_pef(
    model: torch.nn.Module,
    inputs: Any,
    optimizers: Any,
    *,
    settings: CompileSettings,
    loss_indices: Sequence[Any] | None,
    metadata: Mapping[str, Any] | None,
) -> Path:
    """Trace, compile and write a PEF with its log; print its losses, warn if they are in doubt.

    Args:
        model, inputs, optimizers: As in ``session.compile``.
        settings: Name of the program, output path and options.
        loss_indices: Outputs that are losses.
        metadata: Text to store.

    Returns:
        Absolute path of the PEF.

    Raises:
        SambaError: If the model cannot be compiled or the files cannot be written; those that
            were there before are then untouched.
    """
    listed = as_optimizers(optimizers)
    losses = loss_index_tuple(loss_indices)
    options = replace(settings, loss_indices=losses, metadata=_text(metadata, settings))
    path = settings.pef.absolute()
    with stages(
        f"compile {settings.name}", "tracing", "cutting into sections", "writing the PEF"
    ) as stage:
        stage.start("tracing")
        given = collect_inputs(model, inputs)
        memory = open_memory(model, given, inference=settings.inference)
        keep_in_process = keeper_of_trace(model, given, inference=settings.inference)
        with nullcontext() if memory is None else memory.watching():
            traced = trace_model(model, given, inference=settings.inference)
        keep_in_process(traced)
        stage.start("cutting into sections")
        traced = apply_arithmetic(traced, settings.arithmetic)
        program = build_program(traced, listed, options)
        stage.start("writing the PEF")
        digest = _write(path, program, settings)
        if memory is not None:
            memory.keep(with_kept_state(traced), program.graphs[0], pef=digest)
    tell_start(
        settings.name, *[f"{what} {seconds_text(took)}" for what, took in stage.seconds.items()]
    )
    if line := losses_line(program):
        say(line)
    if options.loss_indices is None:
        doubt = doubtful_losses(program, trained=bool(listed))
    else:
        doubt = lost_losses(program, options.loss_indices)
    if doubt:
        tell("chosen-losses", doubt)
    if not settings.inference and (lost := lost_copies(listed)):
        tell("fp32-params", lost)
    return path


def say_created(path: Path, *, seconds: float, otherwise: str) -> None:
    """Say that a PEF was written, and what to do with it.

    Args:
        path: The PEF.
        seconds: How long the compile took.
        otherwise: How it is run where this process has no command line that says it.
    """
    parsed = last_parsed_args()
    line = "" if parsed is None else following_command(parsed)
    then = f"{line} --pef={shlex.quote(str(path))}" if line else otherwise
    size = bytes_text(path.stat().st_size)
    say(created_line("PEF file", str(path), size=size, seconds=seconds, then=then))


def compile_graphs(
    graphs: Sequence[Traced],
    *,
    settings: CompileSettings,
    mapping: str,
    metadata: Mapping[str, Any] | None,
    write: bool,
) -> Path | None:
    """Compile several traced graphs and write a PEF with its log.

    Args:
        graphs: The graphs, in their order in the PEF.
        settings: Name of the program, output path and options.
        mapping: Mapping that takes the place of the configured one, empty for that.
        metadata: Text to store.
        write: Whether to write the files.

    Returns:
        Absolute path of the PEF, None if nothing is written.

    Raises:
        SambaError: If the graphs cannot be compiled or the files cannot be written; those that
            were there before are then untouched.
    """
    options = replace(
        settings, mapping=mapping or settings.mapping, metadata=_text(metadata, settings)
    )
    path = settings.pef.absolute()
    with stages(f"compile {settings.name}", "cutting into sections", "writing the PEF") as stage:
        stage.start("cutting into sections")
        lowered = [apply_arithmetic(traced, settings.arithmetic) for traced in graphs]
        program = build_program(lowered, (), options)
        if not write:
            verify(program)
            return None
        stage.start("writing the PEF")
        _write(path, program, settings)
    return path


def _text(
    metadata: Mapping[str, Any] | None, settings: CompileSettings
) -> tuple[tuple[str, str], ...]:
    if metadata is None:
        metadata = {}
    mapping_of(metadata, "session.compile(pef_metadata=...)", "a dict of strings")
    texts = {str(k): str(v) for k, v in metadata.items()}
    if cast := autocast_in_force():
        texts[AUTOCAST] = cast
    return tuple((texts | settings.arithmetic.metadata()).items())


def _write(path: Path, program: Program, settings: CompileSettings) -> str:
    """Write PEF and log, so that both are of one program whatever happens; then what was asked.

    Returns:
        The digest of the PEF.
    """

    @functools.cache
    def described() -> dict[str, Any]:  # once, after the program is verified
        return describe(program)

    with _folders_of(path):
        info = write_pef(path, program, log=lambda info: pef_log(program, info.digest, described()))
    graphs = range(len(program.graphs))
    if settings.dumps_graph:
        text = json_text(graphs_as_dict(program, graphs), indent=1)
        write_atomically(str(path.with_suffix(".graph.json")), [text.encode(), b"\n"])
    if settings.plots:
        write_atomically(str(path.with_suffix(".dot")), [as_dot(program, graphs).encode()])
    for stats in settings.stats:
        text = json_text(compiled_stats(described(), pef=str(path)), indent=2)
        write_atomically(str(stats), [f"{text}\n".encode()])
    return info.digest


@contextlib.contextmanager
def _folders_of(path: Path) -> Iterator[None]:
    """Make the folders of a file, and remove those that were made if the body raises."""
    new = [folder for folder in path.parents if not os.path.lexists(folder)]
    try:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            where = quoted(str(path.parent), 1024)
            raise PefUnwritable(
                f"cannot make the folder {where}: {error.strerror}", path=path
            ) from None
        yield
    except BaseException:
        for folder in new:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise
