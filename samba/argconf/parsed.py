"""Parsed arguments: which options are read, and what was parsed last, which a compile goes by."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from samba.argconf.options import OPTIONS, Option
from samba.support.deviations import Deviations
from samba.support.slot import Slot

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

_EFFECTIVE = frozenset(option.dest for option in OPTIONS if not option.lost)
"""Fields of options that do what they ask for, with one command at least."""

_DEFAULT_LEVEL = next(option.default for option in OPTIONS if option.dest == "log_level")

_last: Slot[argparse.Namespace] = Slot()
_looked_into: Slot[bool] = Slot()
deviations = Deviations()


class NotedArgs(argparse.Namespace):
    """Parsed arguments that record which of the given options were read.

    Whoever asks for ``vars(args)`` may read all of them from there, so all count as read then.
    Printing is not reading. Copies, and what is pickled, are plain ``argparse.Namespace``.

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
        value = super().__getattribute__(name)
        unread: dict[str, str] = object.__getattribute__(self, "_samba_unread")
        if unread:
            if name == "__dict__":
                unread.clear()
            else:
                unread.pop(name, None)
        return value

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


def set_log_level(args: argparse.Namespace) -> None:
    """Let the logger ``samba`` have the level that arguments ask for, unless it is the default.

    Args:
        args: The arguments.
    """
    level = logging.getLevelNamesMapping().get(str(args.log_level).upper())
    if level is not None and args.log_level != _DEFAULT_LEVEL:
        logging.getLogger("samba").setLevel(level)


def tell_lost(args: argparse.Namespace, redeclared: Collection[str] = ()) -> None:
    """Say once in a process which of the options that were given do not do what they ask for.

    Args:
        args: The arguments. Without a ``command``, options are meant that do it for none.
        redeclared: Fields that the app has options of its own for.
    """
    lost: dict[str, list[str]] = {}
    command = getattr(args, "command", None)
    for option in OPTIONS:
        if (
            option.lost
            and (command in option.commands if command else option.dest not in _EFFECTIVE)
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

    The log level takes effect, and fields that do nothing are told, as of a command line.

    Args:
        fields: Values by name of the field; built-in fields that are missing get their defaults.

    Returns:
        All of them.
    """
    args = argparse.Namespace(**{**default_fields(), **fields})
    note_parsed(args)
    set_log_level(args)
    tell_lost(args)
    return args
