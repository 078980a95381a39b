"""``python -m samba compare``: see ``docs/compare.md``."""

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
    from samba.comparison.command import run

    return run(sys.argv[1:] if argv is None else list(argv))


if __name__ == "__main__":
    sys.exit(main())
