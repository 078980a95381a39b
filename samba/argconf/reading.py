"""Parsed arguments that note which options are read, so that those nobody reads can be told."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["NotedArgs", "following_command", "looked_at", "noted_fields", "unread_options"]


class NotedArgs(argparse.Namespace):
    """Parsed arguments that take note of which of the given options were read.

    Whoever asks for ``vars(args)`` may read all of them from there, so all count as read then.
    Printing is no reading. Copies, and what is pickled, are plain ``argparse.Namespace``.

    Args:
        args: The parsed arguments.
        given: Spellings of options that the command line had, by field.
        following: The command line that comes next, without its PEF; empty if none does.

    Example:
        >>> args = NotedArgs(argparse.Namespace(lr=0.1, epochs=3), {"lr": "--lr", "epochs": "-e"})
        >>> args.lr
        0.1
        >>> unread_options(args)
        {'epochs': '-e'}
    """

    __slots__ = ("_samba_following", "_samba_unread")

    def __init__(
        self, args: argparse.Namespace, given: Mapping[str, str], following: str = ""
    ) -> None:
        self._samba_unread, self._samba_following = dict(given), following
        super().__init__(**_fields(args))

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        unread: dict[str, str] = object.__getattribute__(self, "_samba_unread")
        if unread:
            if name == "__dict__":
                unread.clear()
            else:
                unread.pop(name, None)
        return found

    def __contains__(self, key: str) -> bool:
        return key in _fields(self)

    def __repr__(self) -> str:
        return repr(argparse.Namespace(**_fields(self)))

    def __reduce_ex__(self, protocol: Any, /) -> tuple[Any, ...]:
        return argparse.Namespace, (), dict(vars(self))


def following_command(args: argparse.Namespace) -> str:
    """The command line that comes next, without its PEF; empty where none is known.

    Args:
        args: Parsed arguments.
    """
    return args._samba_following if isinstance(args, NotedArgs) else ""


def _fields(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of arguments, without a note that they were read."""
    return object.__getattribute__(args, "__dict__")


def unread_options(args: argparse.Namespace) -> dict[str, str]:
    """Options that were given and that nobody has read so far: spellings by field.

    Args:
        args: Parsed arguments; of those that take no notes nothing is known.
    """
    return dict(args._samba_unread) if isinstance(args, NotedArgs) else {}


class _NotedFields(Mapping[str, Any]):
    """Fields of arguments by name; what is read here is noted there."""

    __slots__ = ("args",)

    def __init__(self, args: NotedArgs) -> None:
        self.args = args

    def __getitem__(self, key: str) -> Any:
        try:
            return getattr(self.args, key)
        except (AttributeError, TypeError):
            raise KeyError(key) from None

    def __contains__(self, key: object) -> bool:
        return key in _fields(self.args)

    def __iter__(self) -> Iterator[str]:
        return iter(_fields(self.args))

    def __len__(self) -> int:
        return len(_fields(self.args))


def noted_fields(args: argparse.Namespace) -> Mapping[str, Any]:
    """The fields of arguments by name, for a reader who takes some of them.

    Args:
        args: Parsed arguments.

    Returns:
        A mapping whose reads count as reads of the arguments; their dict if they take no notes.
    """
    return _NotedFields(args) if isinstance(args, NotedArgs) else vars(args)


def looked_at(config: Mapping[str, Any] | argparse.Namespace) -> Mapping[str, Any]:
    """The fields of a configuration for who only checks or records them: no read is noted.

    Args:
        config: What :func:`noted_fields` gives, any other mapping, or parsed arguments.

    Example:
        >>> args = NotedArgs(argparse.Namespace(batch_size=8), {"batch_size": "-b"})
        >>> looked_at(args)["batch_size"], unread_options(args)
        (8, {'batch_size': '-b'})
    """
    if isinstance(config, _NotedFields):
        return _fields(config.args)
    return _fields(config) if isinstance(config, argparse.Namespace) else config
