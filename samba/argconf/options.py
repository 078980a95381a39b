"""The built-in command line options: one table, by sub-command."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from typing import Any

COMMANDS: dict[str, str] = {
    "compile": "trace the model and write a PEF",
    "run": "run the app from a PEF",
    "test": "compare results of a PEF with a reference",
    "measure-performance": "measure throughput and latency of a PEF",
    "measure-sections": "measure every section of a PEF",
}
"""Sub-commands and their help."""

_COMPILE = ("compile",)
_MEASURE = ("measure-performance", "measure-sections")
_DEVICE = ("run", "test", *_MEASURE)
_ALL = tuple(COMMANDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A built-in option.

    Args:
        flags: Its spellings.
        commands: Sub-commands that have it.
        settings: Keywords of ``add_argument``.
        help: Help text; empty for options that steer the hardware compiler, which are accepted
            without effect and shown only with ``--debug``.
        required: Sub-commands that cannot do without it.
        lost: What does not happen although it was asked for, in words that follow the option;
            empty where everything does, or where apps read the option themselves.
    """

    flags: tuple[str, ...]
    commands: tuple[str, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    help: str = ""
    required: tuple[str, ...] = ()
    lost: str = ""

    @property
    def dest(self) -> str:
        """Name of its field in the parsed arguments."""
        long = next((flag for flag in self.flags if flag.startswith("--")), self.flags[0])
        return self.settings.get("dest", long.lstrip("-").replace("-", "_"))

    @property
    def default(self) -> Any:
        """Value of the field when the option is not given; a list is one of its own each time."""
        switch = self.settings.get("action") == "store_true"
        value = self.settings.get("default", False if switch else None)
        return list(value) if isinstance(value, list) else value

    def add_to(self, parser: argparse.ArgumentParser, command: str, show_all: bool) -> None:
        """Declares the option on the parser of a sub-command that has it."""
        text = self.help or ("accepted; no effect here" if show_all else argparse.SUPPRESS)
        settings = dict(self.settings)
        if command in self.required:
            settings["required"] = True
        parser.add_argument(*self.flags, help=text, **settings)


def _value(
    flags: str,
    commands: tuple[str, ...],
    help: str = "",
    required: tuple[str, ...] = (),
    lost: str = "",
    **settings: Any,
) -> Option:
    return Option(
        flags=tuple(flags.split()),
        commands=commands,
        settings=settings,
        help=help,
        required=required,
        lost=lost,
    )


def _switch(flags: str, commands: tuple[str, ...], help: str = "", lost: str = "") -> Option:
    return _value(flags, commands, help, lost=lost, action="store_true")


def _level(level: str, help: str) -> Option:
    return _value(
        f"--{level}",
        _COMPILE,
        help,
        dest="optim_level",
        action="store_const",
        const=level,
        default="o3",
    )


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"found {text}, expected 1 or more")
    return number


_SPLITS = ("none", "batch", "weight")
_count.__name__ = "int"  # argparse names the type where the text is not a number

_USED: tuple[Option, ...] = (
    _value("-b --batch-size", _ALL, "samples in a batch (default 1)", type=_count, default=1),
    _value(
        "-mb --microbatch-size",
        _ALL,
        "samples in a microbatch, a part of the batch; results are those of the whole batch",
        type=_count,
        lost="the batch runs as a whole, with the gradients of the whole batch",
    ),
    _value(
        "-p --pef",
        _ALL,
        "path of the PEF, which compile writes",
        required=_DEVICE,
    ),
    _value("--pef-name", _COMPILE, "name of the PEF and of its folder"),
    _value("--output-folder", _COMPILE, "folder for PEFs", default="./out"),
    _switch("--inference", _ALL, "forward pass only; give it to both compile and run"),
    _value(
        "--mapping",
        _ALL,
        "'spatial' puts forward and backward into one section",
        choices=("section", "spatial"),
        default="section",
    ),
    _level("o0", "one section for each operation"),
    _level("o1", "one section for each fused module"),
    _level("o3", "as few sections as possible (default)"),
    _value(
        "--graphamp-preset",
        _ALL,
        "values that are rounded to bfloat16: none (mp0, default), inputs of matrix products "
        "(mp1), all (mp4); a run uses the setting of its PEF",
        choices=("mp0", "mp1", "mp4"),
    ),
    _value(
        "--bf16-cast",
        _ALL,
        "rounding from float32 to bfloat16 (default nearest_even); a run uses the setting of its "
        "PEF",
        choices=("nearest_even", "truncation", "stochastic"),
    ),
    _switch(
        "--enable-stochastic-rounding", ("compile", "run"), "the same as --bf16-cast stochastic"
    ),
    _value(
        "--grad-accumulation-steps",
        ("compile", "run"),
        "number of runs whose gradients are accumulated before an update",
        type=int,
        default=1,
    ),
    _value(
        "--num-spatial-batches",
        _ALL,
        "batches in one run with spatial mapping; here one run is one batch",
        type=int,
        default=1,
        lost="one run is one batch and one update",
    ),
    _switch(
        "--data-parallel", _ALL, "replicate the model; each replica trains on its part of the data"
    ),
    _value("-ws --world-size", _COMPILE, "smallest number of replicas", type=int, default=1),
    _switch("--reduce-on-rdu", _DEVICE, "reduce gradients of replicas on the device"),
    _value(
        "--data-parallel-mode",
        _DEVICE,
        "order of sections and gradient synchronization",
        choices=("normal", "inorder", "optimal"),
        default="normal",
    ),
    _value("-n --num-iterations", _DEVICE, "iterations to run or measure", type=int, default=100),
    _switch("--run-graph-only", _MEASURE, "exclude transfers of inputs and outputs"),
    _value(
        "--min-duration",
        _MEASURE,
        "measure for at least this many seconds",
        type=float,
        default=0.0,
    ),
    _value("--num-sections", _MEASURE, "measure only this many sections, the first ones", type=int),
    _value("--bench-report-json", _DEVICE, "write the measurement to this file"),
    _value("--acc-report-json", ("run", "test"), "write the accuracy to this file"),
    _value(
        "--compiled-stats-json",
        _MEASURE,
        "write the measurement to this file, with the memory of each plan and the session's "
        "metrics",
    ),
    _value(
        "--compiled-stats-json",
        _COMPILE,
        "write sections with their costs, and memory along the schedule, to this file",
    ),
    _switch("--dump-traced-graph", _COMPILE, "also write the graph as JSON, NAME.graph.json"),
    _switch("--plot", _COMPILE, "also write a drawing of the graph in the DOT language, NAME.dot"),
    _switch(
        "--dump-compiled-stats-json",
        _COMPILE,
        "like --compiled-stats-json, to NAME.stats.json beside the PEF",
    ),
    _value("--json", _DEVICE, "older name of --acc-report-json and --bench-report-json"),
    _switch("--enable-profiler", ("run", "test"), "profile the front end"),
    _value(
        "--timeline", ("run", "test"), "write a timeline of the runs to this file, for Perfetto"
    ),
    _switch(
        "--timeline-kernels",
        ("run", "test"),
        "with --timeline: also record kernels, which is slower",
    ),
    _value(
        "--log-dir",
        ("run", "test"),
        "log the losses, learning rates and duration of each step to this folder: steps.jsonl, and "
        "events for TensorBoard",
    ),
    _value("--gold-file-path", ("run", "test"), "file with reference results"),
    _switch("--visualize", ("run", "test"), "print how much results differ"),
    _value("--yaml-config", _ALL, "YAML file with more values, for apps that read one"),
    _value(
        "--log-level",
        _ALL,
        "lowest severity that is logged",
        choices=("debug", "info", "warning", "error", "critical"),
        default="warning",
    ),
    _switch(
        "--check-indices",
        _ALL,
        "check in every run the indices that the model computes; for debugging, runs are slower",
    ),
    _value(
        "--n-chips --num-chips",
        _DEVICE,
        "devices that the program runs on, with --tensor-parallel",
        dest="n_chips",
        type=_count,
        default=1,
    ),
    _value(
        "--tensor-parallel",
        _DEVICE,
        "what is divided among the --n-chips devices: the samples of a batch, or the weights",
        choices=_SPLITS,
        default="none",
    ),
    _switch("--debug", _ALL, "show every option in the help, and the full traceback of an error"),
)

_HARDWARE = "for the hardware compiler"
_SAY_TO_RUN = "pass it to run; every PEF runs on any number of chips"
_NO_FILE = "nothing is written"
_COMPILE_WRITES = "compile writes it"

_SIZES: tuple[Option, ...] = (
    _switch("--dump-traced-graph", ("run",), lost=_COMPILE_WRITES),
    _switch("--plot", ("run",), lost=_COMPILE_WRITES),
    _switch("--dump-compiled-stats-json", ("run",), lost=_COMPILE_WRITES),
    _value(
        "--n-chips --num-chips", _COMPILE, dest="n_chips", type=_count, default=1, lost=_SAY_TO_RUN
    ),
    _value("--num-tiles", _COMPILE, type=int, default=-1, lost=_HARDWARE),
    _value("--arch", _COMPILE, lost=_HARDWARE),
    _value("--tensor-parallel", _COMPILE, choices=_SPLITS, default="none", lost=_SAY_TO_RUN),
    _value("--distlearn-config", _ALL, default=""),
    _value("--local-rank", _DEVICE, type=int, default=-1),
    _value("--default-device", _COMPILE, default="DDR", lost=_HARDWARE),
    _value("--json-counters", _MEASURE, default="", lost=_NO_FILE),
    _value("--log-dir", (*_COMPILE, *_MEASURE), lost=_NO_FILE),
    _value("--verbose", _ALL, action="count", default=0, lost="use --log-level"),
)

_COMPILER_VALUES: dict[str, dict[str, Any]] = {
    "--amp-level": {"type": int, "default": 4},
    "--compiler-configs-file": {"default": ""},
    "--compiler-mode": {},
    "--enable-mixed-precision-ops": {"nargs": "+"},
    "--hbm-auto-alloc": {},
    "--input-layout": {},
    "--latency-budget-bwd": {"type": float},
    "--latency-budget-fwd": {"type": float},
    "--mac-human-decision": {},
    "--max-expected-mac-latency": {"type": float, "default": -1.0},
    "--max-mac-loop-attempt": {"type": int, "default": -1},
    "--max-tiling-depth": {"type": int},
    "--mlir-file-name": {},
    "--o1-experimental-opts": {"nargs": "*"},
    "--optimization-rules": {"nargs": "+"},
    "--recompute-ratio": {"type": float, "default": -1.0},
    "--resource-report-path": {},
    "--resources-scaling-factors": {"nargs": "+", "default": ["-1.0"] * 4},
    "--section-cut-sort-order": {"type": int, "default": 3},
    "--stage-instrumentation": {"default": "none"},
    "--target-sambaflow-version": {},
    "--tile-orientation": {"default": "auto"},
    "--tiling-accum": {},
    "--traced-attributes-folder": {"default": ""},
    "--weight-grad-reduce": {},
    "--weight-layout": {},
}
"""Options with a value that steer the hardware compiler."""

_COMPILER_SWITCHES = [
    *("all-regions-hbm", "arc-debug-mode", "default-par-factors", "dense-adam-fast-grad-compute"),
    *("disable-bf16-conversion", "disable-mac-tiling", "disable-retry-lower-visible-resources"),
    *("dropout-tiling-legalizer-error", "enable-buffer-trial-compile", "enable-coe"),
    *("enable-conv-tiling", "enable-conv2d-conversion", "enable-distribution-pass"),
    *("enable-hypersection", "enable-multi-input-broadcast", "enable-node-trial-compile"),
    *("enable-pcu-scaling", "enable-safe-stochastic-rounding", "force-node-proximity"),
    *("fp32-params", "fuse-fwd-bwd", "gen-tensorboard", "has-human-decision", "host-fifo"),
    *("include-read-stall-cycles", "loop-conversion", "mac-v1", "mac-v2", "metapipe-disable"),
    *("mock-inference", "model-parallel", "modelbox", "ndtest", "ndtest-mp"),
    *("optimize-concat-split", "pp-lamb-optimizer", "run-analysis-pass", "run-early-tp"),
    *("safe-mode", "samba-plot", "sambahd", "sambatune-graph", "section-cut-beam-search"),
    *("single-opt-sec", "skip-pnr-aware", "strict-auto-cast", "strict-conversion"),
    *("train-samba-spatial", "unroll-first", "use-air-ce", "use-o1-default-rules"),
    *("validate-mac-resource-prediction", "verbose-report", "weight-caching", "weight-sharing"),
]
"""Switches that steer the hardware compiler."""

_LOST = {
    "--gen-tensorboard": _NO_FILE,
    "--mlir-file-name": _NO_FILE,
    "--resource-report-path": _NO_FILE,
    "--stage-instrumentation": "no counters are read",
    "--traced-attributes-folder": _NO_FILE,
    "--samba-plot": _NO_FILE,
    "--sambatune-graph": _NO_FILE,
    "--verbose-report": _NO_FILE,
    "--run-analysis-pass": _NO_FILE,
    "--mock-inference": "the program runs as usual",
    "--model-parallel": "the program runs on one processor",
    **dict.fromkeys(
        (
            "--amp-level",
            "--disable-bf16-conversion",
            "--enable-mixed-precision-ops",
            "--enable-safe-stochastic-rounding",
            "--fp32-params",
            "--strict-auto-cast",
            "--tiling-accum",
            "--weight-grad-reduce",
        ),
        "--graphamp-preset and --bf16-cast choose the arithmetic",
    ),
    "--pp-lamb-optimizer": "the program uses the optimizer given to compile",
}
"""What does not happen, of options that do more than steer the hardware compiler."""

_RUN_SWITCHES = ["acc-test", "dump-accuracy-debug-info", "ignore-output-grads", "listen-for-input"]
"""Switches of the vendor's sample apps that apps read without declaring them."""

OPTIONS: tuple[Option, ...] = (
    *_USED,
    *_SIZES,
    *(
        _value(flag, _COMPILE, lost=_LOST.get(flag, _HARDWARE), **settings)
        for flag, settings in _COMPILER_VALUES.items()
    ),
    *(
        _switch(f"--{name}", ("compile", "run"), lost=_LOST.get(f"--{name}", _HARDWARE))
        for name in _COMPILER_SWITCHES
    ),
    *(_switch(f"--{name}", ("run", "test")) for name in _RUN_SWITCHES),
)
"""Every built-in option."""

WRITTEN_BY_COMPILE = frozenset({o.dest for o in OPTIONS if o.lost == _COMPILE_WRITES})
"""Fields of switches for files that `compile` alone writes; `run` takes them without effect."""
