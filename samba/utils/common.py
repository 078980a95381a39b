"""The driver that SambaFlow scripts hand their command to."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

import torch

from samba.argconf.options import COMMANDS
from samba.argconf.parsed import noted_fields
from samba.errors import ArgumentError
from samba.session.process import session
from samba.utils import measure, utils
from samba.utils.pef_utils import get_pefmeta

__all__ = ["common_app_driver"]


def common_app_driver(
    args: Namespace,
    model: torch.nn.Module,
    inputs: Any,
    optim: Any = None,
    name: str = "",
    init_output_grads: bool | None = None,
    app_dir: str | None = None,
    squeeze_bs_dim: bool = False,
    get_output_grads: bool | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Compiles or measures a model, as the command says.

    ``run`` and ``test`` are the app's own work: the driver returns without doing anything.

    Args:
        args: What ``parse_app_args`` returned.
        model: The converted model.
        inputs: Inputs to trace with.
        optim: None, one optimizer or a list.
        name: Name of the program and, without ``--pef-name``, of the PEF.
        init_output_grads: Whether output gradients are initialised; unless ``--inference`` if
            None.
        app_dir: Accepted.
        squeeze_bs_dim: Accepted.
        get_output_grads: Accepted.
        metadata: Accepted.

    Raises:
        ArgumentError: The command is unknown.
        SambaError: The model cannot be compiled, or the PEF cannot be run.
    """
    command = getattr(args, "command", None)
    if command not in COMMANDS:
        raise ArgumentError(
            where="common_app_driver(args), args.command",
            found=repr(command),
            wanted=f"one of {', '.join(COMMANDS)}",
        )
    if args.command == "compile":
        session.compile(
            model,
            inputs,
            optim,
            name=name,
            app_dir=app_dir,
            config_dict=noted_fields(args),
            pef_metadata=get_pefmeta(args, model),
            init_output_grads=init_output_grads,
            squeeze_bs_dim=squeeze_bs_dim,
            get_output_grads=get_output_grads,
            metadata=metadata,
        )
    elif args.command.startswith("measure-"):
        _measure(args, model, inputs, optim, init_output_grads)


def _measure(
    args: Namespace,
    model: torch.nn.Module,
    inputs: Any,
    optim: Any,
    init_output_grads: bool | None,
) -> None:
    wants_grads = not args.inference if init_output_grads is None else init_output_grads
    utils.trace_graph(
        model,
        inputs,
        None if args.inference else optim,
        init_output_grads=wants_grads,
        pef=args.pef,
        mapping=args.mapping,
        data_parallel_mode=args.data_parallel_mode,
    )
    report = args.bench_report_json or args.json
    if args.command == "measure-performance":
        measure.measure_performance(
            model,
            inputs,
            args.batch_size,
            args.n_chips,
            args.inference,
            run_graph_only=args.run_graph_only,
            n_iterations=args.num_iterations,
            json=report,
            compiled_stats_json=args.compiled_stats_json,
            data_parallel=args.data_parallel,
            reduce_on_rdu=args.reduce_on_rdu,
            min_duration=args.min_duration,
        )
    else:
        measure.measure_sections(
            model,
            inputs,
            num_sections=args.num_sections,
            n_iterations=args.num_iterations,
            batch_size=args.batch_size,
            data_parallel=args.data_parallel,
            reduce_on_rdu=args.reduce_on_rdu,
            json=report,
            min_duration=args.min_duration,
            compiled_stats_json=args.compiled_stats_json,
        )
