"""The command line that was parsed last in this process: what a compile or a load goes by."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from samba.argconf.options import OPTIONS

__all__ = ["configure", "default_fields", "last_parsed_args", "note_parsed"]

_last: list[argparse.Namespace] = []


def last_parsed_args() -> argparse.Namespace | None:
    """The arguments that ``parse_app_args`` returned last; None before its first call."""
    return _last[-1] if _last else None


def note_parsed(args: argparse.Namespace) -> None:
    """Make arguments those that were parsed last.

    Args:
        args: The arguments.
    """
    _last[:] = [args]


def default_fields() -> dict[str, Any]:
    """The defaults of all built-in options by field, lists as lists of their own."""
    return {
        option.dest: list(option.default) if isinstance(option.default, list) else option.default
        for option in OPTIONS
    }


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
