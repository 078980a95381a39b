"""The step of a data parallel run for any number of replicas: ``python -m samba simulate``.

Exit codes: 0 done, 1 a section has no time, the PEF has nothing to reduce, or a file could not be
written, 2 wrong usage, 3 the PEF, the times or the machine's file is missing or bad.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from emulator.costs.machine_file import BadMachineFile, read_machine
from emulator.replicas.schedule import Mode
from emulator.replicas.simulation.links import AllReduce, Cluster, Link
from emulator.replicas.simulation.step import PlannedStep, StepTime, planned_step
from pef_schema import read_pef
from pef_schema.errors import quoted
from pef_schema.printable import json_text, say, say_text
from pef_schema.program import Program
from samba.inspection.estimate import amount_text, estimate, seconds_text
from samba.inspection.quantities import bytes_per_second, counts, seconds
from samba.inspection.running import (
    BAD_FILE,
    DONE,
    WrongUsage,
    chosen_graph,
    run_command,
    write_output,
)
from samba.inspection.scaling_plot import scaling_plot
from samba.inspection.section_times import BadTimes, section_seconds
from samba.support.layout import bytes_text, paragraph, some, table, terminal_width

__all__ = ["run"]

_HEAD = ("replicas", "mode", "step", "compute", "reduce", "waits", "efficiency")
_REPLICAS = (1, 8, 64, 512, 4096)
_NOTE = (
    "compute: the sections; reduce: all reductions, hidden or not; waits: what the step takes "
    "longer than its sections; efficiency: compute of the step. All replicas are alike, and the "
    "links are theirs alone. docs/scaling.md says what is assumed."
)


def run(arguments: Sequence[str]) -> int:
    """Run the command.

    Args:
        arguments: Those behind its name.

    Returns:
        The exit code.
    """
    return run_command(lambda: _simulate(arguments))


def _simulate(arguments: Sequence[str]) -> int:
    args = _parser().parse_args(arguments)
    program = read_pef(args.pef)
    graph = chosen_graph(program, args.graph, pef=args.pef)
    if graph is None:
        if len(program.graphs) > 1:
            names = ", ".join(quoted(g.name) for g in program.graphs[:8])
            raise WrongUsage(f"{quoted(args.pef, 1024)}: it has several graphs. Give one: {names}.")
        graph = 0
    cluster = _cluster(args)
    step = planned_step(program, graph)
    try:
        times = _times(args, program, graph)
    except (BadMachineFile, BadTimes) as error:
        say_text(f"error: {error}", file=sys.stderr)
        return BAD_FILE
    device = step.device_seconds(program, times)
    modes = list(Mode) if args.mode is None else [Mode(args.mode)]
    algorithm = AllReduce(args.topology)
    found = {
        mode: [
            step.on_cluster(mode, device.__getitem__, cluster, algorithm, replicas=n)
            for n in args.replicas
        ]
        for mode in modes
    }
    if args.picture is not None:
        inputs = {"the PEF": args.pef}
        if args.times is not None:
            inputs["the times"] = args.times
        curves = {mode.value: [(t.replicas, t.efficiency) for t in found[mode]] for mode in modes}
        write_output(args.picture, scaling_plot(curves).encode(), inputs=inputs)
    if args.json:
        say_text(json_text(_as_dict(program, graph, step, cluster, algorithm, found), indent=2))
    else:
        _print(program, graph, step, cluster, algorithm, found)
    return DONE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m samba simulate",
        description="Play a full step of a PEF that was compiled for replicas, by the order that "
        "a real run takes, on replicas and links that are described. Nothing is compiled or run.",
        epilog="docs/scaling.md says what is assumed, and how near it comes to real runs.",
    )
    parser.add_argument("pef", help="the PEF, compiled with --data-parallel")
    parser.add_argument(
        "--replicas",
        type=counts,
        default=_REPLICAS,
        metavar="N,N",
        help="how many, with commas; 1,8,64,512,4096 if not given",
    )
    parser.add_argument(
        "--topology",
        choices=[a.value for a in AllReduce],
        default=AllReduce.RING.value,
        help="how a reduction is made of messages; ring if not given",
    )
    parser.add_argument(
        "--latency", type=seconds, required=True, metavar="TIME", help="of a message, e.g. 20us"
    )
    parser.add_argument(
        "--bandwidth",
        type=bytes_per_second,
        required=True,
        metavar="RATE",
        help="of a host's link, e.g. 10GB/s",
    )
    parser.add_argument("--per-host", type=int, default=1, metavar="N", help="replicas of a host")
    parser.add_argument(
        "--inside-latency", type=seconds, metavar="TIME", help="of a message within a host"
    )
    parser.add_argument(
        "--inside-bandwidth",
        type=bytes_per_second,
        metavar="RATE",
        help="between two replicas of a host",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--times",
        metavar="FILE",
        help="measured times: what measure-sections --json wrote, or a timeline",
    )
    source.add_argument(
        "--machine",
        metavar="FILE.toml",
        help="times that sections cannot go below on a machine, see docs/cost.md",
    )
    parser.add_argument("--mode", choices=[m.value for m in Mode], help="this mode alone")
    parser.add_argument("--graph", metavar="NAME", help="the graph, where there are several")
    parser.add_argument("--picture", metavar="FILE.svg", help="draw the efficiency")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _cluster(args: argparse.Namespace) -> Cluster:
    inside = (args.inside_latency, args.inside_bandwidth)
    if args.per_host < 1:
        raise WrongUsage(f"--per-host: found {args.per_host}, wanted 1 or more.")
    if args.per_host == 1 and inside != (None, None):
        raise WrongUsage(
            "--inside-latency and --inside-bandwidth are of links within a host: "
            "give --per-host 2 or more with them."
        )
    if args.per_host > 1 and None in inside:
        raise WrongUsage(
            "--per-host: links within a host are others than those between hosts. "
            "Give --inside-latency and --inside-bandwidth with it."
        )
    between = Link(latency=args.latency, bandwidth=args.bandwidth)
    within = between if args.per_host == 1 else Link(latency=inside[0], bandwidth=inside[1])
    return Cluster(between=between, inside=within, per_host=args.per_host)


def _times(args: argparse.Namespace, program: Program, graph: int) -> Mapping[str, float]:
    if args.times is not None:
        return section_seconds(args.times, {section.name for section in program.sections})
    machine = read_machine(args.machine)
    index = next(i for i, s in enumerate(program.schedules) if s.graph == graph)
    rows = estimate(program, index, machine).rows
    return {program.sections[row.section].name: row.bound.seconds for row in rows}


def _link_text(link: Link) -> str:
    return f"{seconds_text(link.latency)} and {amount_text(link.bandwidth, 'B/s')}"


def _print(
    program: Program,
    graph: int,
    step: PlannedStep,
    cluster: Cluster,
    algorithm: AllReduce,
    found: Mapping[Mode, Sequence[StepTime]],
) -> None:
    width = terminal_width()
    sizes = [n for task, n in zip(step.tasks, step.nbytes, strict=True) if task.net]
    links = f"links of {_link_text(cluster.between)}"
    if cluster.per_host > 1:
        links += (
            f" between hosts of {some(cluster.per_host, 'replica')}, "
            f"{_link_text(cluster.inside)} inside"
        )
    name = quoted(program.graphs[graph].name)
    head = (
        f"graph {name} of {quoted(program.name)}: {some(len(sizes), 'bucket')}, "
        f"{bytes_text(sum(sizes))} a step; {algorithm.value}, {links}"
    )
    say_text(paragraph(head, width=width))
    say()
    by_count = zip(*found.values(), strict=True)
    rows = [
        (
            f"{time.replicas:,}",
            mode.value,
            seconds_text(time.seconds),
            seconds_text(time.compute),
            seconds_text(time.communication),
            seconds_text(time.exposed),
            f"{time.efficiency:.1%}",
        )
        for times in by_count
        for mode, time in zip(found, times, strict=True)
    ]
    say_text(table(_HEAD, rows, width=width, right=(0, 2, 3, 4, 5, 6)))
    say()
    say_text(paragraph(_NOTE, width=width))


def _as_dict(
    program: Program,
    graph: int,
    step: PlannedStep,
    cluster: Cluster,
    algorithm: AllReduce,
    found: Mapping[Mode, Sequence[StepTime]],
) -> dict[str, Any]:
    def link(of: Link) -> dict[str, float]:
        return {"latency_seconds": of.latency, "bytes_per_second": of.bandwidth}

    return {
        "program": program.name,
        "graph": program.graphs[graph].name,
        "topology": algorithm.value,
        "between_hosts": link(cluster.between),
        "inside_hosts": link(cluster.inside) if cluster.per_host > 1 else None,
        "replicas_per_host": cluster.per_host,
        "buckets": [
            {"name": task.name, "bytes": nbytes}
            for task, nbytes in zip(step.tasks, step.nbytes, strict=True)
            if task.net
        ],
        "steps": [
            {
                "replicas": time.replicas,
                "mode": mode.value,
                "seconds": time.seconds,
                "compute_seconds": time.compute,
                "reduce_seconds": time.communication,
                "waits_seconds": time.exposed,
                "efficiency": time.efficiency,
            }
            for mode, times in found.items()
            for time in times
        ],
    }
