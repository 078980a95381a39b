"""The time that the sections of a PEF cannot go below on a machine: ``python -m samba estimate``.

Exit codes: 0 done, 1 the machine has no rate for what the program multiplies, or a file could not
be written, 2 wrong usage, 3 the PEF or the machine's file is missing or bad.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from emulator.costs.machine_file import BadMachineFile, machine_toml, read_machine
from emulator.costs.roofline import Machine
from pef_schema import read_pef
from pef_schema.errors import quoted
from pef_schema.printable import json_text, say, say_text
from pef_schema.program import DType, Program
from samba.inspection.estimate import (
    HEAD,
    SORTS,
    Estimate,
    amount_text,
    as_dict,
    estimate,
    multiplied_types,
    ratio_text,
    seconds_text,
    sorted_rows,
    table_cells,
)
from samba.inspection.running import (
    BAD_FILE,
    DONE,
    WrongUsage,
    chosen_graph,
    run_command,
    write_output,
)
from samba.support.layout import paragraph, table, terminal_width

__all__ = ["run"]

_THIS = "this"
_SAVED = (DType.FLOAT32, DType.BFLOAT16)
"""Types that a saved machine has a rate of, beside those that the program multiplies."""

_NOTE = (
    "Whoever computes these products and moves these bytes takes so long at least: the larger of "
    "both at the machine's best rates. Latency is not modelled: small sections take longer."
)


def run(arguments: Sequence[str]) -> int:
    """Run the command.

    Args:
        arguments: Those behind its name.

    Returns:
        The exit code.
    """
    return run_command(lambda: _estimate(arguments))


def _estimate(arguments: Sequence[str]) -> int:
    args = _parser().parse_args(arguments)
    if args.save is not None and args.machine != _THIS:
        raise WrongUsage("--save FILE keeps what was measured: give it with --machine this.")
    program = read_pef(args.pef)
    graph = chosen_graph(program, args.graph, pef=args.pef)
    try:
        machine = _machine(args.machine, program, saved=args.save is not None)
    except BadMachineFile as error:
        say_text(f"error: {error}", file=sys.stderr)
        return BAD_FILE
    if args.save is not None:
        write_output(args.save, machine_toml(machine).encode(), inputs={"the PEF": args.pef})
    schedules = [i for i, s in enumerate(program.schedules) if graph in (None, s.graph)]
    found = [estimate(program, i, machine) for i in schedules]
    if args.json:
        say_text(json_text(as_dict(program, machine, found, args.sort), indent=2))
    else:
        _print(program, machine, found, args.sort)
    return DONE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m samba estimate",
        description="Print for each section of a PEF the time that it cannot go below on a "
        "machine, and whether its products or its bytes keep it there. Nothing is compiled or run.",
        epilog="docs/cost.md says what is counted, and what a machine's file holds.",
    )
    parser.add_argument("pef", help="the PEF")
    parser.add_argument(
        "--machine",
        required=True,
        metavar="this|FILE.toml",
        help="measure this machine, some seconds, or read a machine from a file",
    )
    parser.add_argument("--save", metavar="FILE", help="write what was measured to a TOML file")
    parser.add_argument("--graph", metavar="NAME", help="this graph alone; all if not given")
    parser.add_argument(
        "--sort", choices=tuple(SORTS), default="schedule", help="order of the sections"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _machine(named: str, program: Program, *, saved: bool) -> Machine:
    if named != _THIS:
        return read_machine(named)
    from emulator.costs.measuring import measured_machine  # noqa: PLC0415  # it starts jax

    return measured_machine({*multiplied_types(program), *(_SAVED if saved else ())})


def _print(program: Program, machine: Machine, found: Sequence[Estimate], order: str) -> None:
    width = terminal_width()
    rates = [f"{d.name.lower()} {amount_text(r, 'FLOP/s')}" for d, r in machine.rates]
    caches = [
        f"{amount_text(c.bandwidth, 'B/s')} up to {amount_text(c.nbytes, 'B')}"
        for c in machine.caches
    ]
    memory = f"memory {amount_text(machine.bandwidth, 'B/s')}"
    near = f" ({', '.join(caches)})" if caches else ""
    say_text(
        paragraph(
            f"machine {quoted(machine.name)}: {', '.join([*rates, memory])}{near}", width=width
        )
    )
    for one in found:
        say()
        rows = sorted_rows(one, order)
        say(f"graph {quoted(one.graph)} of {quoted(program.name)}: {len(rows)} sections")
        say_text(table(HEAD, table_cells(program, rows), width=width, right=(0, 3, 5, 6, 7, 8)))
        say_text(
            paragraph(f"sections one by one: at least {seconds_text(one.seconds)}", width=width)
        )
        say_text(paragraph(_whole_text(one), width=width))
        if one.unknown:
            say_text(
                paragraph(
                    f"not counted, cost unknown: {', '.join(map(quoted, one.unknown))}",
                    width=width,
                )
            )
    say()
    say_text(paragraph(_NOTE, width=width))


def _whole_text(one: Estimate) -> str:
    whole = one.whole
    return (
        f"as one executable: at least {seconds_text(one.bound.seconds)}, bound by "
        f"{one.bound.binding.value}; products {amount_text(whole.product_flops, 'FLOP')}, "
        f"other {amount_text(whole.other_flops, 'FLOP')}, {amount_text(whole.nbytes, 'B')}, "
        f"{ratio_text(whole.intensity)} FLOP/B"
    )
