"""Tools for models and scripts.

python -m samba compare   torch and the device side by side, see docs/compare.md
python -m samba launch    replicas of a script on this host, see docs/data_parallel.md
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence

from pef_schema.printable import say, say_text

_COMMANDS = ("compare", "launch")


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
    if arguments[0] == "launch":
        from samba.distributed.launcher import main as launch  # noqa: PLC0415  # this command alone

        return launch(arguments[1:])
    if arguments[0] != "compare":
        close = difflib.get_close_matches(arguments[0], _COMMANDS, n=1, cutoff=0.4)
        meant = f", did you mean {close[0]!r}?" if close else "."
        say(
            f"python -m samba: no command {arguments[0]!r}{meant} "
            f"The commands are {' and '.join(_COMMANDS)}; --help says what they do.",
            file=sys.stderr,
        )
        return 2
    from samba.comparison.command import run  # noqa: PLC0415  # loads jax

    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
