"""Run, inspect and verify PEFs without torch.

Exit codes: 0 done, 1 the run failed, 2 wrong usage, 3 the file is missing or bad, or, for verify,
the device cannot run its program.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from emulator.arrays import check_output, read_arrays, savez_call, write_arrays
from emulator.command_output import to_the_end
from emulator.costs.description import describe
from emulator.dtypes import TO_NUMPY
from emulator.errors import CannotRun, LoweringError, NoGraph, PlanError, UnknownSection
from emulator.plans.steps import StepKey, all_steps, find_kind, steps_of_kinds
from pef_schema import PefError, SambaError, read_pef
from pef_schema.printable import json_text, say, say_text
from pef_schema.program import DType, Program, Role, SectionKind


class MissingInputs(SambaError):
    """The ``.npz`` files lack inputs of the program.

    Args:
        pef: The PEF.
        missing: These inputs with shapes and dtypes, as :func:`_tensor` gives them.
        names: Names of all inputs.
    """

    def __init__(
        self, *, pef: str, missing: Sequence[dict[str, Any]], names: Sequence[str]
    ) -> None:
        self.pef, self.missing, self.names = pef, tuple(missing), tuple(names)
        listed = ", ".join(f"{t['name']} {t['shape']} {t['dtype']}" for t in missing)
        super().__init__(
            f"{pef}: there is no array for input {listed}. Make a file with "
            f"{savez_call(names, 'inputs.npz')} and pass it: "
            f"python -m emulator run {pef} inputs.npz"
        )


class WrongDtype(SambaError):
    """An array has the dtype that numpy makes, and not that of the tensor."""

    def __init__(self, *, name: str, found: str, wanted: str) -> None:
        self.name, self.found, self.wanted = name, found, wanted
        super().__init__(
            f"array {name}: found {found}, the program was compiled for {wanted}. "
            f"Save it as {name}=array.astype({wanted!r})."
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point.

    Args:
        argv: Arguments without the program name; the process's own if None.

    Returns:
        The exit code.
    """
    return to_the_end(lambda: _command(_parser().parse_args(argv)), failed=1)


def _command(args: argparse.Namespace) -> int:
    try:
        program = read_pef(args.pef)
    except PefError as error:
        say_text(f"error: {error}", file=sys.stderr)
        return 3
    try:
        return args.action(args, program)
    except SambaError as error:
        say_text(f"error: {error}", file=sys.stderr)
        return 1


class _Exact(argparse.ArgumentParser):
    """Takes no part of an option's name for it: a later option might begin so, too."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, allow_abbrev=False)


def _parser() -> argparse.ArgumentParser:
    parser = _Exact(prog="python -m emulator", description=__doc__)
    actions = parser.add_subparsers(required=True, metavar="{run,inspect,verify}")
    run = actions.add_parser("run", help="run a PEF on arrays from .npz files")
    run.add_argument("pef", help="the PEF")
    run.add_argument(
        "inputs", nargs="?", help=".npz with the inputs by name, optionally also weights"
    )
    run.add_argument(
        "--inputs", dest="inputs_option", metavar="NPZ", help="the inputs, given as an option"
    )
    run.add_argument("--weights", metavar="NPZ", help=".npz with weights and buffers by name")
    run.add_argument(
        "--init-seed",
        type=int,
        default=0,
        help="seed for weights that are not given (default 0)",
    )
    run.add_argument("--graph", metavar="NAME", help="graph to run (default: the first)")
    run.add_argument(
        "--section-types", nargs="+", metavar="TYPE", help="run only sections of these types"
    )
    run.add_argument("--iterations", type=int, default=1, help="number of runs (default 1)")
    run.add_argument("--output", metavar="NPZ", help="write the outputs to this file")
    run.add_argument("--json", action="store_true", help="print a JSON report")
    run.set_defaults(action=_run)
    inspect = actions.add_parser("inspect", help="print what a PEF contains")
    inspect.add_argument("pef", help="the PEF")
    inspect.add_argument("--json", action="store_true", help="print JSON")
    inspect.set_defaults(action=_inspect)
    verify = actions.add_parser(
        "verify",
        help="check that a PEF is good and that the device can run it",
        description="Check the file and the program in it, operations and their arguments "
        "included, and lower every section and every schedule, with and without dropout, momentum "
        "and gradients of outputs set by the host. Nothing is compiled or run. Exit code 0 means "
        "that the program runs, if its data and the machine's memory allow it; 3 means that the "
        "file is bad or the device cannot run its program.",
    )
    verify.add_argument("pef", help="the PEF")
    verify.set_defaults(action=_verify)
    return parser


def _verify(args: argparse.Namespace, program: Program) -> int:
    from emulator.lowered_whole import lower_everything  # noqa: PLC0415  # it loads jax: inspect does not

    try:
        lower_everything(program)
    except (CannotRun, LoweringError, PlanError) as error:
        say(f"error: {args.pef}: {error}", file=sys.stderr)
        return 3
    say(f"{args.pef}: good ({program.name}, {len(program.sections)} sections)")
    return 0


def _inspect(args: argparse.Namespace, program: Program) -> int:
    described = describe(program)
    graphs: list[dict[str, Any]] = [
        {
            "name": graph["name"],
            "inputs": [_entry(tensor, tensor["region"]) for tensor in graph["inputs"]],
            "outputs": [_entry(tensor, tensor["region"]) for tensor in graph["outputs"]],
        }
        for graph in described["graphs"]
    ]
    weights = [r for r in described["regions"] if r["role"] == Role.WEIGHT.name.lower()]
    report: dict[str, Any] = {
        **{key: described[key] for key in ("name", "mapping", "inference")},
        "inputs": graphs[0]["inputs"] if graphs else [],
        "outputs": graphs[0]["outputs"] if graphs else [],
        "graphs": graphs,
        "weights": [_entry(region, region["name"]) for region in weights],
        "argins": {a["name"]: a["default"] for a in described["hyperparameters"]},
        "sections": [
            {
                **{key: section[key] for key in ("id", "name", "types")},
                "nodes": sum(len(step["nodes"]) for step in section["steps"]),
            }
            for section in described["sections"]
        ],
        "bytes": described["counts"]["bytes"],
        "metadata": described["metadata"],
    }
    if args.json:
        say_text(json_text(report, indent=2))
        return 0
    say(f"{report['name']}: mapping={program.mapping} inference={program.inference}")
    for graph in graphs:
        title = f" of graph {graph['name']}" if len(graphs) > 1 else ""
        _print_tensors(f"inputs{title}", graph["inputs"])
        _print_tensors(f"outputs{title}", graph["outputs"])
    _print_tensors("weights", report["weights"])
    argins = [f"{k}={float(v):g}" for k, v in report["argins"].items()]
    say(f"argins: {', '.join(argins) or 'none'}")
    say("sections:")
    for section in report["sections"]:
        kinds = "+".join(section["types"])
        say(f"  {section['id']:4d}  {kinds:<10} {section['name']}  {section['nodes']} nodes")
    return 0


def _entry(item: dict[str, Any], name: str) -> dict[str, Any]:
    return {"name": name, "shape": item["shape"], "dtype": item["dtype"]}


def _print_tensors(title: str, tensors: Sequence[dict[str, Any]]) -> None:
    say(f"{title}:")
    for tensor in tensors:
        say(f"  {tensor['name']}  {tensor['shape']} {tensor['dtype']}")


def _run(args: argparse.Namespace, program: Program) -> int:
    from emulator.device import Device  # noqa: PLC0415  # it loads jax: inspect does not

    for option, value, least in (
        ("--iterations", args.iterations, 1),
        ("--init-seed", args.init_seed, 0),
    ):
        if value < least:
            say(f"error: {option} must be {least} or more", file=sys.stderr)
            return 2
    names = [graph.name for graph in program.graphs]
    if not names:
        raise NoGraph(program=program.name)
    if args.graph is not None and args.graph not in names:
        say(f"error: no graph {args.graph}; there are {', '.join(names)}", file=sys.stderr)
        return 2
    graph = names.index(args.graph) if args.graph is not None else 0
    steps = _steps(args, program, graph)
    if args.output:
        others = {"the PEF": args.pef, "the inputs": args.inputs, "--inputs": args.inputs_option}
        check_output(args.output, others | {"--weights": args.weights})
    inputs = [
        _tensor(program, program.graphs[graph].values[v].region)
        for v in program.graphs[graph].inputs
    ]
    device = Device(program)
    arrays: dict[str, np.ndarray] = {}

    def fits(name: str, shape: tuple[int, ...], dtype: np.dtype) -> None:
        region = device.region_of(name)
        home = program.regions[region]
        if dtype == np.float64 and home.dtype is DType.FLOAT32:
            raise WrongDtype(name=name, found="float64", wanted="float32")
        if shape != home.shape:
            device.check(region, shape, dtype, name=name)

    for path, keys in (
        (args.weights, ()),
        (args.inputs, [t["name"] for t in inputs]),
        (args.inputs_option, [t["name"] for t in inputs]),
    ):
        if path:
            arrays.update(read_arrays(path, fits, keys))
    for name, array in arrays.items():
        region = device.region_of(name)
        device.write(region, _as_region(array, program.regions[region].dtype), name=name)
    absent = [t for t in inputs if device.pool.buffers[device.region_of(t["name"])] is None]
    if absent and any(program.sections[s].steps[k].kind is SectionKind.FWD for s, k in steps):
        raise MissingInputs(pef=args.pef, missing=absent, names=[t["name"] for t in inputs])
    missing = _regions(program, Role.WEIGHT, Role.BUFFER)
    missing = [r for r in missing if device.pool.buffers[r] is None]
    if missing:
        _draw(device, program, missing, args.init_seed)
        say(
            f"{len(missing)} weight(s) and buffer(s) are in no .npz file: "
            f"they are drawn with seed {args.init_seed}",
            file=sys.stderr,
        )
    plan = device.plan(steps)
    start = time.perf_counter()
    for _ in range(args.iterations):
        device.run(plan)
    device.synchronize()
    seconds = (time.perf_counter() - start) / args.iterations
    outputs = {o.name: device.read(o.region) for o in program.graphs[graph].outputs}
    if args.output:
        write_arrays(args.output, {k: _portable(v) for k, v in outputs.items()})
    _report(outputs, seconds, args)
    return 0


def _steps(args: argparse.Namespace, program: Program, graph: int) -> StepKey:
    """The steps to run: those of the section types that were asked for, of which there are some."""
    if not args.section_types:
        return all_steps(program, graph)
    present = [k.name for k in SectionKind if any(k in s.kinds for s in program.sections)]
    kinds = [find_kind(name) for name in args.section_types]
    unknown = [
        name
        for name, kind in zip(args.section_types, kinds, strict=True)
        if kind is None or kind.name not in present
    ]
    if unknown:
        raise UnknownSection(found=unknown, wanted=present, what="--section-types")
    return steps_of_kinds(program, args.section_types, graph)


def _report(outputs: dict[str, np.ndarray], seconds: float, args: argparse.Namespace) -> None:
    rows = {
        name: {
            "shape": list(a.shape),
            "dtype": a.dtype.name,
            "mean": _mean(_portable(a)) if a.size else None,
        }
        for name, a in outputs.items()
    }
    if args.json:
        say_text(json_text({"seconds_per_run": seconds, "outputs": rows}, indent=2))
        return
    for name, row in rows.items():
        say(f"{name}  {row['shape']} {row['dtype']}  mean {row['mean']}")
    say(f"{seconds * 1e3:.3f} ms per run, {args.iterations} run(s)")


def _mean(array: np.ndarray) -> float | str:
    """The mean of an array; of complex numbers as a text, since JSON has none."""
    if array.dtype.kind == "c":
        return str(complex(array.astype(np.complex128).mean()))
    return float(array.astype(np.float64).mean())


def _as_region(array: np.ndarray, dtype: DType) -> np.ndarray:
    """Bring bfloat16 data, which ``.npz`` cannot name, to the region's dtype."""
    if dtype is DType.BFLOAT16 and array.dtype.kind in "Vf":
        bfloat16 = TO_NUMPY[dtype]
        return (
            array.view(bfloat16)
            if array.dtype.itemsize == 2 and array.dtype.kind == "V"
            else array.astype(bfloat16)
        )
    return array


def _portable(array: np.ndarray) -> np.ndarray:
    """bfloat16 as float32; everything else as it is."""
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def _draw(device: Any, program: Program, regions: list[int], seed: int) -> None:
    """Start weights normal with variance 1/fan-in, vectors at zero or one."""
    generator = np.random.default_rng(seed)
    for r in regions:
        region = program.regions[r]
        dtype = TO_NUMPY[region.dtype]
        if len(region.shape) > 1 and region.dtype.has_gradient:
            fan_in = max(1, int(np.prod(region.shape[1:])))
            data = generator.standard_normal(region.shape) / np.sqrt(fan_in)
            if region.dtype.is_complex:  # the variance is that of both parts together
                other = generator.standard_normal(region.shape) / np.sqrt(fan_in)
                data = (data + 1j * other) / np.sqrt(2)
        elif region.name.endswith(("running_var", "weight")):
            data = np.ones(region.shape)
        else:
            data = np.zeros(region.shape)
        device.write(r, data.astype(dtype))


def _regions(program: Program, *roles: Role) -> list[int]:
    return [i for i, r in enumerate(program.regions) if r.role in roles]


def _tensor(program: Program, region: int) -> dict[str, Any]:
    r = program.regions[region]
    return {"name": r.name, "shape": list(r.shape), "dtype": r.dtype.name.lower()}


if __name__ == "__main__":
    sys.exit(main())
