"""Which commands of ``python -m samba`` load torch; a help text never does."""

from __future__ import annotations

import sys

TORCH_COMMANDS = ("compare", "launch")
"""Commands that load torch. The others work on a PEF alone, on machines without torch too."""


def needs_no_torch() -> bool:
    """Whether this process is a command that works without torch.

    Python imports the package ``samba`` before the command itself gets a say. Until the command
    has been found, ``sys.argv[0]`` is ``-m``, and the module's name stands in ``sys.orig_argv``.

    Example:
        >>> needs_no_torch()
        False
    """
    if sys.argv[:1] != ["-m"] or sys.orig_argv[-len(sys.argv)] not in ("samba", "-msamba"):
        return False
    command, *options = sys.argv[1:] or [""]
    # What follows a script is the script's: `launch -n 2 train.py --help` runs it.
    return command not in TORCH_COMMANDS or options[:1] in (["-h"], ["--help"])
