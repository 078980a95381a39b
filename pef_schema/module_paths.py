"""Module paths as people read them: ``blocks[0-3].attention``, four of ``net__blocks__N__…``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

__all__ = ["plain_path", "root_of", "short_paths"]

_JOINT = "__"
"""What stands between the parts of a path in a program."""
_WIDTH = 40
"""Characters of a table's cell with module paths."""
_DEPTH = 8
"""Parts of a path, behind what all share, that are shown at most."""


def root_of(paths: Iterable[str]) -> str:
    """The model that all modules of a program are in, whose name :func:`short_paths` leaves out.

    Args:
        paths: Paths of all modules, as the program has them.

    Returns:
        Its name; empty if there are several models, or if numbers follow the name.

    Example:
        >>> root_of(["net", "net__fc1"]), root_of(["a__fc", "b__fc"]), root_of(["net__0"])
        ('net', '', '')
    """
    parts = [path.split(_JOINT) for path in paths if path]
    roots = {part[0] for part in parts}
    if len(roots) != 1 or any(part[1:] and _is_index(part[1]) for part in parts):
        return ""
    return roots.pop()


def plain_path(path: str, *, root: str = "") -> str:
    """One module path as Python has it.

    Args:
        path: The path, as the program has it.
        root: What :func:`root_of` said; left out at the beginning.

    Example:
        >>> plain_path("net__blocks__0__attention", root="net"), plain_path("net", root="net")
        ('blocks[0].attention', 'net')
        >>> plain_path("")
        ''
    """
    return short_paths([path], root=root) if path else ""


def short_paths(paths: Sequence[str], *, root: str = "", width: int = _WIDTH) -> str:
    """Module paths for a cell of a table.

    Modules that differ only in their numbers are one. Where that takes too much room, outer modules
    stand for all inside them; where these do, the last of them are counted.

    Args:
        paths: The paths, none of them twice.
        root: What :func:`root_of` said; left out at the beginning.
        width: Characters to keep within; a single path is never cut.

    Returns:
        Paths with commas between them; ``-`` if there are none.

    Example:
        >>> short_paths(["net", "net__fc1"], root="net"), short_paths([])
        ('net, fc1', '-')
        >>> paths = [f"net__blocks__{i}__{part}" for i in range(4) for part in ("attn", "mlp")]
        >>> short_paths(paths, root="net"), short_paths(paths, root="net", width=20)
        ('blocks[0-3].attn, blocks[0-3].mlp', 'blocks[0-3]')
        >>> short_paths(["first", "second", "third"], width=15)
        'first, +2'
    """
    if not paths:
        return "-"
    parts = [_without(path.split(_JOINT), root) for path in paths]
    if len(parts) == 1:
        return _joined(parts[0])
    shared = _common_length(parts)
    deepest = min(max(map(len, parts)), shared + _DEPTH)
    shown: list[str] = []
    for depth in range(deepest, 0, -1):
        shown = _merged(list(dict.fromkeys(tuple(part[:depth]) for part in parts)))
        text = ", ".join(shown)
        if len(text) <= width or len(shown) == 1:
            return text
    for count in range(len(shown) - 1, 1, -1):
        text = ", ".join([*shown[:count], f"+{len(shown) - count}"])
        if len(text) <= width:
            return text
    return f"{shown[0]}, +{len(shown) - 1}"


def _without(parts: list[str], root: str) -> list[str]:
    return parts[1:] if len(parts) > 1 and parts[0] == root else parts


def _common_length(parts: list[list[str]]) -> int:
    """How many parts at the beginning all paths have in common."""
    first, last = min(parts), max(parts)
    same = 0
    while same < min(len(first), len(last)) and first[same] == last[same]:
        same += 1
    return same


class _Inside(NamedTuple):
    """What is below one part of paths.

    Args:
        itself: Whether a path ends with the part.
        texts: What follows it in all others.
    """

    itself: bool
    texts: tuple[str, ...]


def _merged(paths: Sequence[tuple[str, ...]]) -> list[str]:
    """Paths as texts in order; parts that are numbers and have the same below them are one."""
    below: dict[str, list[tuple[str, ...]]] = {}
    for path in paths:
        below.setdefault(path[0], []).append(path[1:])
    groups: dict[tuple[str, _Inside], list[str]] = {}
    for part, rests in below.items():
        deeper = [rest for rest in rests if rest]
        inside = _Inside(itself=len(deeper) < len(rests), texts=tuple(_merged(deeper)))
        groups.setdefault(("" if _is_index(part) else part, inside), []).append(part)
    texts: list[str] = []
    for (name, inside), members in groups.items():
        start = name or f"[{_ranges(sorted({int(member) for member in members}))}]"
        texts += [start] if inside.itself else []
        texts += [start + ("" if text.startswith("[") else ".") + text for text in inside.texts]
    return texts


def _joined(parts: Sequence[str]) -> str:
    return "".join(
        f"[{part}]" if at and _is_index(part) else f".{part}" if at else part
        for at, part in enumerate(parts)
    )


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers that rise, as ``0-3,5``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _is_index(part: str) -> bool:
    """Whether a part is the number of a module in a list of modules."""
    return part.isascii() and part.isdecimal() and len(part) < 10 and str(int(part)) == part
