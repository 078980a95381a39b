"""The ``.pef.log`` beside a PEF: what ``python -m samba inspect`` shows of it, whole."""

from __future__ import annotations

from emulator.costs.description import describe
from pef_schema.printable import printable
from pef_schema.program import Program
from samba.compiler.forms.listing import whole
from samba.compiler.losses import losses_line

_WIDTH = 120
"""Columns: enough for all that the lists can show."""


def pef_log(program: Program, digest: str = "") -> str:
    """Describe a program: its sections, losses, memory and its peak, graphs and nodes.

    Args:
        program: The program.
        digest: Digest of its PEF (``PefInfo.digest``), by which the two can be told to belong
            together.

    Returns:
        Text that ends with a newline; names are shown as a terminal may show them.
    """
    notes = [f"pef: {digest}" if digest else "", losses_line(program)]
    return printable(whole(describe(program), width=_WIDTH, notes=list(filter(None, notes)))) + "\n"
