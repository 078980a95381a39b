"""The command ``read_perf_counters``: there are no hardware counters to read here."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pef_schema.printable import say

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Says where times of an emulated device are found.

    Args:
        argv: Accepted.

    Returns:
        Exit status 0.
    """
    say(
        "read_perf_counters: an emulated device has no hardware counters. "
        "Use the measure-sections command, or samba.session.samba_profile(...)."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
