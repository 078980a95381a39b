"""The command line that was parsed last in this process: what a compile or a load goes by."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from samba.argconf.options import OPTIONS, Option
from samba.argconf.reading import unread_options
from samba.support.deviations import Deviations
from samba.support.slot import Slot

__all__ = [
    "begins_app",
    "configure",
    "default_fields",
    "divides_batch",
    "last_parsed_args",
    "looking_in",
    "note_parsed",
    "tell_lost",
    "tell_unread",
]

_TAKEN = frozenset(
    (
        *("command", "debug", "log_level", "timeline", "timeline_kernels", "data_parallel"),
        "log_dir",
        "world_size",  # any number of replicas may run a PEF
        "local_rank",  # launchers pass it
    )
)
"""Fields of options whose wish is granted although nothing reads them later."""

_SETTLED = frozenset(("batch_size", "inference", "mapping"))
"""Fields of options that a run follows its PEF in, unless the app reads them."""

_last: Slot[argparse.Namespace] = Slot()
_looked_into: Slot[bool] = Slot()
deviations = Deviations()


def last_parsed_args() -> argparse.Namespace | None:
    """The arguments that ``parse_app_args`` returned last; None before its first call."""
    return _last.value


def begins_app(arguments: Sequence[str]) -> bool:
    """Whether arguments are those of the process: an app begins that is in charge of it.

    Args:
        arguments: What is parsed.
    """
    return list(arguments) == sys.argv[1:] and not _looked_into.value


@contextmanager
def looking_in() -> Iterator[None]:
    """While active, an app is only looked into: it runs no PEF and does not end the process."""
    before, _looked_into.value = _looked_into.value, True
    try:
        yield
    finally:
        _looked_into.value = before


def note_parsed(args: argparse.Namespace) -> None:
    """Make arguments those that were parsed last.

    Args:
        args: The arguments.
    """
    _last.value = args


def tell_lost(args: argparse.Namespace, redeclared: Collection[str] = ()) -> None:
    """Say once in a process which of the options that were given do not do what they ask for.

    Args:
        args: The parsed arguments with their ``command``.
        redeclared: Fields that the app has options of its own for.
    """
    lost: dict[str, list[str]] = {}
    for option in OPTIONS:
        if (
            option.lost
            and args.command in option.commands
            and option.dest not in redeclared
            and getattr(args, option.dest) != option.default
        ):
            lost.setdefault(option.lost, []).append(_long(option))
    if lost:
        parts = "; ".join(f"{', '.join(names)}: {text}" for text, names in lost.items())
        deviations.tell("option-without-effect", f"options accepted without effect: {parts}")


def tell_unread(args: argparse.Namespace, redeclared: Collection[str] = ()) -> None:
    """Say which of the options that were given nothing has read: they have changed nothing.

    Args:
        args: The parsed arguments with their ``command``.
        redeclared: Fields that the app has options of its own for.
    """
    silent = {
        option.dest
        for option in OPTIONS
        if option.dest in _TAKEN or (option.lost and args.command in option.commands)
    }
    unread: dict[str, list[str]] = {}
    for field, spelt in unread_options(args).items():
        if field not in silent or field in redeclared:
            follows = field in _SETTLED and args.command != "compile"
            why = "which a run takes from its PEF" if follows else "which the script has not read"
            unread.setdefault(why, []).append(spelt)
    if unread:
        parts = "; ".join(f"{', '.join(names)}, {why}" for why, names in unread.items())
        deviations.tell("option-without-effect", f"options without effect: {parts}")


def _long(option: Option) -> str:
    return next(flag for flag in option.flags if flag.startswith("--"))


def divides_batch(batch: Any, microbatch: Any) -> bool:
    """Whether a batch consists of whole microbatches.

    Args:
        batch: Samples in a batch. Anything but a whole number is not checked.
        microbatch: Samples in a microbatch, or None.

    Example:
        >>> divides_batch(64, 4), divides_batch(4, 8), divides_batch(64, None)
        (True, False, True)
    """
    if not isinstance(batch, int) or not isinstance(microbatch, int):
        return True
    return 1 <= microbatch <= batch and batch % microbatch == 0


def default_fields() -> dict[str, Any]:
    """The defaults of all built-in options by field, lists as lists of their own."""
    return {option.dest: option.default for option in OPTIONS}


def configure(fields: Mapping[str, Any]) -> argparse.Namespace:
    """Make fields count as the command line that was parsed last.

    Args:
        fields: Values by name of the field; built-in fields that are missing get their defaults.

    Returns:
        All of them.
    """
    args = argparse.Namespace(**{**default_fields(), **fields})
    note_parsed(args)
    return args
