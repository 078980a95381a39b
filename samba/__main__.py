"""Tools for models, scripts and PEFs.

python -m samba inspect    what a PEF holds, see docs/inspect.md
python -m samba diff       where two PEFs differ, see docs/inspect.md
python -m samba compare    torch and the device side by side, see docs/compare.md
python -m samba launch     replicas of a script on this host, see docs/data_parallel.md
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from pef_schema.printable import say, say_text


def _inspect(arguments: Sequence[str]) -> int:
    from samba.inspection.inspect_command import run  # noqa: PLC0415  # this command alone

    return run(arguments)


def _diff(arguments: Sequence[str]) -> int:
    from samba.inspection.diff_command import run  # noqa: PLC0415  # this command alone

    return run(arguments)


def _compare(arguments: Sequence[str]) -> int:
    from samba.comparison.command import run  # noqa: PLC0415  # it loads torch and jax

    return run(["compare", *arguments])


def _launch(arguments: Sequence[str]) -> int:
    from samba.distributed.launcher import main as launch  # noqa: PLC0415  # this command alone

    return launch(arguments)


_COMMANDS: Mapping[str, Callable[[Sequence[str]], int]] = MappingProxyType(
    {"inspect": _inspect, "diff": _diff, "compare": _compare, "launch": _launch}
)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point.

    Args:
        argv: Arguments without the program name; the process's own if None.

    Returns:
        The exit code.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    if arguments[:1] in ([], ["-h"], ["--help"]):
        say_text(__doc__ or "")
        return 0 if arguments else 2
    command = _COMMANDS.get(arguments[0])
    if command is None:
        close = difflib.get_close_matches(arguments[0], _COMMANDS, n=1, cutoff=0.4)
        meant = f", did you mean {close[0]!r}?" if close else "."
        *others, last = _COMMANDS
        say(
            f"python -m samba: no command {arguments[0]!r}{meant} "
            f"The commands are {', '.join(others)} and {last}; --help says what they do.",
            file=sys.stderr,
        )
        return 2
    return command(arguments[1:])


if __name__ == "__main__":
    sys.exit(main())
