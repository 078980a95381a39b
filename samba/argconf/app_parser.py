"""The parser of an app's command line: a mistake is one line, with what may have been meant."""

from __future__ import annotations

import argparse
import difflib
import shlex
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from pef_schema.printable import say

WRONG_USAGE = 2
"""Exit status after a mistake in the command line."""
_NEAR, _FAR = 0.8, 0.6
"""How much of an option's name must be right: with the command's own options, and at last."""


class AppParser(argparse.ArgumentParser):
    """A parser that takes options by their whole names, and tells a mistake in one line.

    The parser of the app itself shows the commands, too, which are one line more.

    Args:
        settings: Those of ``argparse.ArgumentParser``.

    Attributes:
        arguments: The command line, for guesses at what was meant.
        others: The parsers of all commands, this one included, by command.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, allow_abbrev=False)
        self.arguments: Sequence[str] = ()
        self.others: Mapping[str, argparse.ArgumentParser] = {}

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and end the process with status 2."""
        if not self.others:
            super().error(message)
        text = f"{self.prog}: error: {message.rstrip('.')}."
        for guess in meant(self, self.arguments):
            text += f" {guess}"
        self.exit(WRONG_USAGE, text=f"{text} {self.prog} --help lists the options.")

    def exit(self, status: int = 0, message: str | None = None, *, text: str = "") -> NoReturn:
        """End the process.

        Args:
            status: Its exit status.
            message: What argparse wants to be printed.
            text: One line of ours.
        """
        if text:
            say(text, file=sys.stderr)
        super().exit(status, message)


def _options(arguments: Sequence[str]) -> Iterator[str]:
    """What looks like options, without their values."""
    for argument in arguments:
        if argument == "--":
            return
        name = argument.split("=", 1)[0]
        if len(name) > 1 and name[0] == "-" and not name[1].isdigit() and name[1] != ".":
            yield name


def meant(parser: AppParser, arguments: Sequence[str]) -> list[str]:
    """Guesses at options that a command does not have, a sentence for each.

    Args:
        parser: The command's parser.
        arguments: The command line.
    """
    own = parser._option_string_actions
    guesses: list[str] = []
    for name in _options(arguments):
        if name in own or name[:2] in own or not name.startswith("--"):
            continue
        having = [c for c, other in parser.others.items() if name in other._option_string_actions]
        if having:
            guesses.append(f"{name} is an option of {_listed(having)}.")
        elif close := _closest(name, own, parser.others):
            guesses.append(f"Did you mean {close} for {name}?")
    return list(dict.fromkeys(guesses))


def _closest(
    name: str, own: Mapping[str, Any], others: Mapping[str, argparse.ArgumentParser]
) -> str:
    """The option that a name may be meant for; empty if none is near."""
    begun = [option for option in own if option.startswith(name)]
    if len(begun) == 1:
        return begun[0]
    if near := difflib.get_close_matches(name, own, 1, _NEAR):
        return near[0]
    for command, other in others.items():
        if near := difflib.get_close_matches(name, other._option_string_actions, 1, _NEAR):
            return f"{near[0]}, which {command} has,"
    far = difflib.get_close_matches(name, own, 1, _FAR)
    return far[0] if far else ""


def _listed(commands: Sequence[str]) -> str:
    *others, last = commands
    return f"{', '.join(others)} and {last}" if others else last


def given_options(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> dict[str, str]:
    """Options that a command line has, as it spells them, by field.

    Args:
        parser: The command's parser.
        arguments: The command line.
    """
    own, spellings = parser._option_string_actions, {}
    for name in _options(arguments):
        # A letter may have its value right behind it: -n3.
        spelt = name if name in own else name[:2]
        if spelt in own and (spelt == name or not name.startswith("--")):
            spellings.setdefault(own[spelt].dest, spelt)
    return spellings


def run_command(
    parser: argparse.ArgumentParser,
    arguments: Sequence[str],
    script: str,
    without: Collection[str] = (),
) -> str:
    """The command line that runs what a command line compiles, without its PEF.

    Args:
        parser: The parser of ``run``; options that it does not have are left out.
        arguments: The command line that compiles.
        script: The script.
        without: Fields whose options are left out, too.

    Example:
        >>> parser = AppParser()
        >>> _ = parser.add_argument("-b", dest="batch_size")
        >>> run_command(parser, ["compile", "--pef-name", "net", "-b", "8"], "net.py")
        'python net.py run -b 8'
    """
    own, words, keeps = parser._option_string_actions, [], False
    for argument in arguments[arguments.index("compile") + 1 :]:
        for name in _options([argument]):
            option = own.get(name) or own.get("" if name.startswith("--") else name[:2])
            keeps = option is not None and option.dest not in ("pef", *without)
        if keeps:
            words.append(argument)
    return shlex.join(["python", script, "run", *words])
