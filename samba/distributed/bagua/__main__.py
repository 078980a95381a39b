"""Run a script of Bagua as it is: ``python -m samba.distributed.bagua [--cuda-on-cpu] SCRIPT``."""

from __future__ import annotations

import argparse
import importlib
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command.

    Args:
        argv: Its arguments; those of the process if None.
    """
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="python -m samba.distributed.bagua",
        description="Run a script that imports bagua.torch_api with this project's implementation. "
        "Replicas: python -m samba launch -n N -m samba.distributed.bagua SCRIPT.",
    )
    parser.add_argument(
        "--cuda-on-cpu",
        action="store_true",
        help="calls such as tensor.cuda() and torch.cuda.set_device() mean the CPU",
    )
    parser.add_argument("script", type=Path, help="the script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    args = parser.parse_args(argv)
    importlib.import_module("samba.distributed.bagua.install")
    if args.cuda_on_cpu:
        importlib.import_module("samba.distributed.bagua.cuda_on_cpu").cuda_means_cpu()
    sys.argv = [str(args.script), *args.arguments]
    sys.path[0] = str(args.script.resolve().parent)  # as for a script that python is given
    runpy.run_path(str(args.script), run_name="__main__")


if __name__ == "__main__":
    main()
