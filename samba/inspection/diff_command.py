"""``python -m samba diff``: where two PEFs differ, for people and for CI."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pef_schema import PefInfo, read_info, read_pef
from pef_schema.errors import quoted
from pef_schema.printable import one_line, say_text
from samba.inspection.differences import LEVELS, differences
from samba.inspection.program_pairs import Change
from samba.inspection.running import DONE, FAILED, WRONG_USAGE, folded_json, run_command
from samba.support.layout import paragraph, some, terminal_width

FORMAT, VERSION = "samba.diff", 1

_MOST = 20
"""Differences of a level that are shown unless all are asked for."""
_MARKS = {"added": "+", "removed": "-", "changed": "~", "renamed": "="}
_LEGEND = (
    "(+ only in b, - only in a, ~ changed, = the same under another name; name+: only b has it)"
)
_EPILOG = (
    "Exit codes: 0 equal in all levels that were asked for, 1 different, 2 wrong usage or "
    "the output cannot be written, 3 a file is missing or bad. Neither torch nor jax is "
    "loaded."
)


def run(arguments: Sequence[str]) -> int:
    """Run the command.

    Args:
        arguments: Those that follow ``diff``.

    Returns:
        The exit code.
    """
    return run_command(lambda: _diff(_parser().parse_args(arguments)), failed=WRONG_USAGE)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="python -m samba diff",
        description="Show where two PEFs differ, level by level: " + ", ".join(LEVELS) + ". "
        "Parts of both are matched by name and position, so that an insertion is one "
        "difference. See docs/program.md.",
        epilog=_EPILOG,
    )
    parser.add_argument("a", help="the first PEF")
    parser.add_argument("b", help="the second PEF")
    parser.add_argument(
        "--only", type=_levels, metavar="LEVEL,...", help="compare only these levels"
    )
    parser.add_argument(
        "--all", action="store_true", help=f"show all differences, not only {_MOST} per level"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _levels(text: str) -> list[str]:
    """Levels between commas."""
    names = [part.strip() for part in text.split(",") if part.strip()]
    for name in names:
        if name not in LEVELS:
            raise argparse.ArgumentTypeError(
                f"no level {quoted(name)}; the levels are {', '.join(LEVELS)}"
            )
    if not names:
        raise argparse.ArgumentTypeError(f"name some of {', '.join(LEVELS)}")
    return names


def _diff(args: argparse.Namespace) -> int:
    a, b = read_pef(args.a), read_pef(args.b)
    files = {"a": read_info(args.a), "b": read_info(args.b)}
    changes = differences(a, b)
    levels = {name: changes[name] for name in LEVELS if not args.only or name in args.only}
    most = None if args.all else _MOST
    text = _json(files, levels, most) if args.json else _text(files, levels, most)
    say_text(text)
    return FAILED if any(levels.values()) else DONE


def _json(
    files: Mapping[str, PefInfo], levels: Mapping[str, Sequence[Change]], most: int | None
) -> str:
    report: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "equal": not any(levels.values()),
        **{
            side: {"path": info.path, "bytes": info.size, "digest": info.digest}
            for side, info in files.items()
        },
        "levels": {
            name: {
                "count": len(changes),
                "left_out": len(changes) - len(changes[:most]),
                "changes": [asdict(change) for change in changes[:most]],
            }
            for name, changes in levels.items()
        },
    }
    return folded_json(report)


def _text(
    files: Mapping[str, PefInfo], levels: Mapping[str, Sequence[Change]], most: int | None
) -> str:
    width = terminal_width()
    lines = [
        paragraph(f"{side}: {info.path} (digest {info.digest[:16]})", width=width, indent="   ")
        for side, info in files.items()
    ]
    size = max(map(len, levels)) + 2
    for name, changes in levels.items():
        said = some(len(changes), "difference") if changes else "same"
        lines.append(paragraph(f"{name.ljust(size)}{said}", width=width, indent="  "))
        for change in changes[:most]:
            lines += _lines(change, width)
        if len(changes) > len(changes[:most]):
            more = f"  and {len(changes) - len(changes[:most]):,} more: --all shows them"
            lines.append(paragraph(more, width=width, indent="    "))
    different = [name for name, changes in levels.items() if changes]
    if different:
        lines.append(paragraph(f"different: {', '.join(different)}", width=width, indent="  "))
        lines.append(paragraph(_LEGEND, width=width))
    else:
        lines.append("equal")
    return "\n".join(lines)


def _lines(change: Change, width: int) -> list[str]:
    """One difference, on one line if that suffices; else what each side has below it."""
    title = f"  {_MARKS[change.kind]} {change.what}"
    if change.count > 1:
        title += f" ({change.count:,})"
    if change.a and change.b:
        short = one_line(f"{title}: {change.a} -> {change.b}")
        if len(short) <= width:
            return [short]
        sides = [f"      a: {change.a}", f"      b: {change.b}"]
        return [
            paragraph(line, width=width, indent=indent)
            for line, indent in ((title, "    "), *((side, " " * 9) for side in sides))
        ]
    text = change.a or change.b
    return [paragraph(f"{title}: {text}" if text else title, width=width, indent="      ")]
