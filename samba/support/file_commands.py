"""Commands of ``python -m samba`` that work on a PEF alone, on machines without torch too."""

from __future__ import annotations

import sys

__all__ = ["FILE_COMMANDS", "is_file_command"]

FILE_COMMANDS = ("inspect", "diff", "estimate", "memory", "export", "report")
"""Their names, in the order in which help lists them."""


def is_file_command() -> bool:
    """Whether this process is one of these commands.

    Python imports the package ``samba`` before the command itself gets a say. Until the command
    has been found, ``sys.argv[0]`` is ``-m``, and the module's name stands in ``sys.orig_argv``.

    Example:
        >>> is_file_command()
        False
    """
    if sys.argv[:1] != ["-m"] or len(sys.argv) < 2:
        return False
    return sys.orig_argv[-len(sys.argv)] in ("samba", "-msamba") and sys.argv[1] in FILE_COMMANDS
