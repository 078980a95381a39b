"""Compare torch and the device side by side.

Exit codes: 0 nothing is beyond tolerance, 1 something is,
2 there was nothing to compare (wrong usage, a missing file, an app that failed).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from emulator.command_output import to_the_end
from samba.compiler.arithmetic import Bf16Cast, Preset

_EXAMPLES = """\
TARGET is
  app.py          a SambaFlow script, followed by its own arguments: it runs until it calls
                  samba.session.compile or utils.trace_graph, and its arguments to them are compared
  module:function or file.py:function
                  a function without arguments that returns (model, inputs)

examples:
  python -m samba compare net.py compile -b 4
  python -m samba compare --json out.json mymodels.small:make
"""


def run(argv: Sequence[str]) -> int:
    """Run a command line.

    Args:
        argv: Arguments without the program name.

    Returns:
        The exit code.
    """

    def work() -> int:
        args = _parser().parse_args(argv)
        from samba.comparison.targets import compare_target  # noqa: PLC0415  # loads torch

        return compare_target(args)

    return to_the_end(work, failed=2)


def _parser() -> argparse.ArgumentParser:
    command = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="python -m samba compare",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument(
        "--json",
        metavar="FILE",
        help="write the whole report to this file as JSON; - for the terminal",
    )
    command.add_argument("--all", action="store_true", help="show every row of the table")
    command.add_argument("--forward", action="store_true", help="do not compare gradients")
    command.add_argument("--inference", action="store_true", help="compare in evaluation mode")
    for flag, kind in (("--graphamp-preset", Preset), ("--bf16-cast", Bf16Cast)):
        names = [member.value for member in kind]
        command.add_argument(
            flag, choices=names, help="RDU arithmetic; also read from a script's own option"
        )
    command.add_argument("--seed", type=int, default=0, help="initial seed of torch (default 0)")
    command.add_argument("target", metavar="TARGET", help="app.py, or module:function")
    rest = command.add_argument("args", nargs=argparse.REMAINDER, help="arguments of the app")
    rest.required = False  # or an error would name it
    return command
