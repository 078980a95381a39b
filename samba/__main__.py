"""Tools for models and scripts.

python -m samba compare   torch and the device side by side, see docs/compare.md
python -m samba launch    replicas of a script on this host, see docs/data_parallel.md
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point.

    Args:
        argv: Arguments without the program name; the process's own if None.

    Returns:
        The exit code.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    if arguments[:1] in ([], ["-h"], ["--help"]):
        print(__doc__)
        return 0 if arguments else 2
    if arguments[0] == "launch":
        from samba.distributed.launcher import main as launch  # noqa: PLC0415  # this command alone

        return launch(arguments[1:])
    from samba.comparison.command import run  # noqa: PLC0415  # loads jax

    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
