"""``python -m samba export``: a PEF in the form of another tool."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from pef_schema import Program, read_pef
from pef_schema.errors import quoted
from pef_schema.printable import say_text, some_of
from samba.compiler.forms.graphs import as_dot, graphs_as_dict
from samba.inspection.running import (
    DONE,
    UnknownSection,
    WrongUsage,
    chosen_graph,
    folded_json,
    run_command,
    write_output,
)

__all__ = ["NeedsGraph", "UnknownSection", "run"]

_EPILOG = (
    "Exit codes: 0 done, 1 the PEF has no such form or the output cannot be written, 2 wrong "
    "usage (also a graph or section that is not there), 3 the file is missing or bad. dot and json "
    "load neither torch nor jax, stablehlo loads jax, and onnx torch. See docs/program.md."
)
_SHOWN = 8


class NeedsGraph(WrongUsage):
    """A PEF has several graphs, and the format shows one.

    Args:
        pef: The PEF.
        format: The format.
        present: Names of its graphs.
    """

    def __init__(self, *, pef: str, format: str, present: tuple[str, ...]) -> None:
        self.pef, self.format, self.present = pef, format, present
        names = some_of(present, _SHOWN, quoted)
        super().__init__(
            f"{quoted(pef, 1024)}: it has {len(present)} graphs, and {format} shows one: name it "
            f"with --graph. They are {names}."
        )


def run(arguments: Sequence[str]) -> int:
    """Run the command.

    Args:
        arguments: Those that follow ``export``.

    Returns:
        The exit code.
    """
    return run_command(lambda: _export(_parser().parse_args(arguments)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="python -m samba export",
        description="Convert a PEF to the format of another tool: its graphs to JSON with all "
        "their arguments, to a drawing in the DOT language, or for inference to ONNX; a run or a "
        "section to StableHLO.",
        epilog=_EPILOG,
    )
    parser.add_argument("pef", help="the PEF")
    parser.add_argument("--format", required=True, choices=tuple(_FORMATS), help="the format")
    parser.add_argument("-o", "--output", metavar="FILE", default="-", help="write to this file")
    parser.add_argument("--graph", metavar="NAME", help="only this graph")
    parser.add_argument(
        "--section", metavar="NAME", help="stablehlo: this section instead of a run of the graph"
    )
    parser.add_argument(
        "--portable",
        action="store_true",
        help="stablehlo: bytes for jax.export.deserialize, also in later versions",
    )
    parser.add_argument(
        "--weights",
        metavar="CHECKPOINT",
        help="onnx: weights and buffers, a file or folder that load_sharded_checkpoint can read",
    )
    return parser


def _export(args: argparse.Namespace) -> int:
    of = {"section": "stablehlo", "portable": "stablehlo", "weights": "onnx"}
    for option, kind in of.items():
        if getattr(args, option) and args.format != kind:
            raise WrongUsage(f"--{option} is for --format {kind}, not for {args.format}.")
    program = read_pef(args.pef)
    index = chosen_graph(program, args.graph, pef=args.pef)
    form = _FORMATS[args.format]
    data = form.write(args, program, index)
    inputs = {"the PEF": args.pef}
    if args.weights is not None:
        inputs["the checkpoint"] = args.weights
    then = "jax.export.deserialize reads it" if args.portable else form.then
    write_output(args.output, data, inputs=inputs, what=args.format, then=then)
    return DONE


def _chosen(program: Program, index: int | None) -> Sequence[int]:
    """The graph that was asked for; all of them if none was."""
    return range(len(program.graphs)) if index is None else (index,)


def _dot(args: argparse.Namespace, program: Program, index: int | None) -> bytes:
    del args
    return as_dot(program, _chosen(program, index)).encode()


def _json(args: argparse.Namespace, program: Program, index: int | None) -> bytes:
    del args
    return (folded_json(graphs_as_dict(program, _chosen(program, index))) + "\n").encode()


def _one_graph(args: argparse.Namespace, program: Program, index: int | None) -> int:
    if index is None and len(program.graphs) != 1:
        names = tuple(graph.name for graph in program.graphs)
        raise NeedsGraph(pef=args.pef, format=args.format, present=names)
    return index or 0


def _stablehlo(args: argparse.Namespace, program: Program, index: int | None) -> bytes:
    from emulator.plans.steps import all_steps  # noqa: PLC0415  # loads jax
    from samba.exporting import stablehlo as forms  # noqa: PLC0415  # loads jax

    if args.section is not None:
        names = tuple(section.name for section in program.sections)
        if args.section not in names:
            raise UnknownSection(pef=args.pef, found=args.section, present=names)
        steps = forms.section_steps(names.index(args.section), program)
    else:
        steps = all_steps(program, _one_graph(args, program, index))
    function = forms.stablehlo(program, steps, promised=args.portable)
    if not args.portable:
        return function.text.encode()
    if args.output != "-":
        for what, places in (("argument", function.arguments), ("result", function.results)):
            for number, place in enumerate(places):
                say_text(f"{what} {number}: {place.text()}")
    return bytes(function.made.serialize())


def _onnx(args: argparse.Namespace, program: Program, index: int | None) -> bytes:
    from samba.exporting.onnx_graph import load_weights, onnx_bytes  # noqa: PLC0415  # loads torch

    graph = _one_graph(args, program, index)
    return onnx_bytes(program, graph, load_weights(args.weights))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """A form of a PEF.

    Args:
        write: Makes it from the command's arguments, the program, and the graph that was asked for.
        then: What to do with it.
    """

    write: Callable[[argparse.Namespace, Program, int | None], bytes]
    then: str


_FORMATS: Mapping[str, _Form] = MappingProxyType(
    {
        "dot": _Form(write=_dot, then="dot -Tsvg -O, of Graphviz, draws it"),
        "json": _Form(write=_json, then="docs/program.md has its keys"),
        "onnx": _Form(write=_onnx, then="onnxruntime runs it, Netron shows it"),
        "stablehlo": _Form(write=_stablehlo, then="stablehlo-opt and other tools of MLIR read it"),
    }
)
"""The forms by the name that the command takes."""
