"""The command line of SambaFlow scripts: ``compile``, ``run``, ``test``, ``measure-*``."""

from __future__ import annotations

import argparse
import atexit
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pef_schema import PefError, read_info
from pef_schema.printable import say
from samba.abexit import SambaAtexit
from samba.argconf.app_parser import WRONG_USAGE, AppParser, given_options, run_command
from samba.argconf.options import COMMANDS, OPTIONS, WRITTEN_BY_COMPILE
from samba.argconf.parsed import (
    NotedArgs,
    begins_app,
    default_fields,
    divides_batch,
    last_parsed_args,
    note_parsed,
    set_log_level,
    tell_lost,
    tell_unread,
)
from samba.session.process import session
from samba.session.start_line import note_imports
from samba.support.deviations import tell
from samba.support.given import path_of
from samba.utils.flat_yaml import YamlMissing, YamlUnreadable, parse_flat_yaml
from samba.utils.uncaught import show_uncaught_as_messages

__all__ = ["SambaConfig", "last_parsed_args", "parse_app_args", "parse_yaml_to_args"]

ParserFunction = Callable[[argparse.ArgumentParser], Any]


def parse_app_args(
    argv: Sequence[str] | None = None,
    dev_mode: bool = False,
    common_parser_fn: ParserFunction | None = None,
    test_parser_fn: ParserFunction | None = None,
    run_parser_fn: ParserFunction | None = None,
) -> argparse.Namespace:
    """Parses the command line of an app.

    An app may declare built-in options again: its declaration replaces the built-in one for the
    spellings it names, and its default replaces the built-in default for all spellings. One that
    declares a switch ``--cpu`` needs no PEF where it is given.
    ``--log-level`` takes effect on the logger ``samba``, which names the options that were given
    and do nothing. With ``--data-parallel``, a command that
    runs and a launcher that has started several processes (mpirun, srun, torchrun, ``python -m
    samba launch``), torch's default process group is up afterwards.

    Args:
        argv: The arguments, those of the process if None.
        dev_mode: Whether the help shows every option, as ``--debug`` does.
        common_parser_fn: Adds the app's options to the parser of every sub-command.
        test_parser_fn: Adds options to the parser of ``test``.
        run_parser_fn: Adds options to the parser of ``run``.

    Returns:
        The parsed arguments. All built-in fields are there, whatever the sub-command.

    Raises:
        SystemExit: The command line is wrong, or the PEF that it names; a line has said why.
        DataParallelError: Other replicas do not come.

    Example:
        >>> args = parse_app_args(["compile", "-b=64", "-mb=4", "--inference"])
        >>> args.command, args.batch_size, args.microbatch_size, args.inference, args.mapping
        ('compile', 64, 4, True, 'section')
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    of_process = begins_app(arguments)
    if of_process:
        note_imports()
    show_all = dev_mode or "--debug" in arguments
    parser = AppParser(description="Run one of the commands of this app.")
    commands = parser.add_subparsers(dest="command", required=True)
    own = {"test": test_parser_fn, "run": run_parser_fn}
    redeclared: dict[str, set[str]] = {}
    for command, text in COMMANDS.items():
        sub = commands.add_parser(command, help=text, description=text, conflict_handler="resolve")
        for option in OPTIONS:
            if command in option.commands:
                option.add_to(sub, command, show_all)
        built_in = list(sub._actions)
        for declare in (common_parser_fn, own.get(command)):
            if declare is not None:
                declare(sub)
        redeclared[command] = _follow_redeclarations(sub, built_in)
        _free_of_pef(sub, arguments)
        sub.arguments, sub.others = arguments, commands.choices
    args, unknown = parser.parse_known_args(arguments)
    chosen = commands.choices[args.command]
    if unknown:
        chosen.error(f"unrecognized arguments: {' '.join(unknown)}")
    for field, default in default_fields().items():
        if not hasattr(args, field):
            setattr(args, field, default)
    if not hasattr(args, "dev_mode"):
        args.dev_mode = dev_mode
    sizes = args.batch_size, args.microbatch_size
    if "microbatch_size" not in redeclared[args.command] and not divides_batch(*sizes):
        chosen.error(
            f"argument -mb/--microbatch-size: found {sizes[1]}, "
            f"expected a divisor of the batch size {sizes[0]}"
        )
    if args.timeline_kernels and not args.timeline:
        chosen.error(
            "argument --timeline-kernels: it adds kernels to a timeline; name its file by "
            "--timeline FILE"
        )
    set_log_level(args)
    _take_older_name(args, redeclared[args.command])
    if of_process:
        _check_pef(chosen, args, redeclared[args.command])
        show_uncaught_as_messages(debug=bool(args.debug))
    note_parsed(args)
    if args.timeline and of_process:
        session.start_timeline(args.timeline, kernels=args.timeline_kernels)
    own_folder = "log_dir" in redeclared[args.command]
    if args.log_dir and of_process and args.command in ("run", "test") and not own_folder:
        session.follow(args.log_dir)
    tell_lost(args, redeclared[args.command])
    if str(args.command).startswith("measure-") and of_process:
        note_measured()
        atexit.register(_tell_nothing_measured, args.command, os.getpid())
    if args.command == "test" and of_process:
        atexit.register(_tell_nothing_tested, os.getpid())
    parallel, split = args.data_parallel, args.tensor_parallel
    if (parallel or split in ("batch", "weight")) and args.command != "compile":
        from samba.distributed.mesh import join  # noqa: PLC0415  # for runs of several processes

        if join(args.n_chips, split, parallel=parallel) is None and parallel:
            tell(
                "lone-replica",
                f"{args.command} --data-parallel: no launcher has started this process, so it is "
                "the only replica. Start several: python -m samba launch -n 2 "
                f"{Path(sys.argv[0]).name} {' '.join(arguments)}",
            )
    if of_process:
        given = given_options(chosen, arguments)
        given.pop("json", None)  # apps read it by its newer name
        following = ""
        if args.command == "compile":
            done = WRITTEN_BY_COMPILE - set(redeclared["run"])
            following = run_command(commands.choices["run"], arguments, sys.argv[0], done)
        args = NotedArgs(args, given, following)
        note_parsed(args)
        atexit.unregister(_tell_unread)  # what was parsed last counts
        atexit.register(_tell_unread, args, redeclared[args.command], os.getpid())
    return args


def _check_pef(parser: AppParser, args: argparse.Namespace, apps: set[str]) -> None:
    """Ends the process if the PEF to run cannot be read, before a model is built for it.

    An app that declares ``--pef`` itself may mean anything by it.
    """
    if args.command == "compile" or not args.pef or "pef" in apps:
        return
    try:
        read_info(args.pef)
    except PefError as error:
        parser.exit(WRONG_USAGE, text=f"{parser.prog}: error: argument -p/--pef: {error}")


def _tell_unread(args: argparse.Namespace, apps: set[str], process: int) -> None:
    """Names options that nothing has read, where the app has done what it was asked to do."""
    done = session.has_run or session.counters.traces
    if done and not hasattr(sys, "last_value") and os.getpid() == process:
        tell_unread(args, apps)


def _take_older_name(args: argparse.Namespace, redeclared: set[str]) -> None:
    """Make ``--json`` and the option that took its place one: apps read either."""
    newer = "bench" if str(args.command).startswith("measure-") else "acc"
    names = ("json", f"{newer}_report_json")
    if redeclared.isdisjoint(names):
        given = next((file for name in names if (file := getattr(args, name)) is not None), None)
        for name in names:
            setattr(args, name, given if getattr(args, name) is None else getattr(args, name))


def _free_of_pef(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Lets an app that declares ``--cpu`` be run with it and without a PEF."""
    switch = parser._option_string_actions.get("--cpu")
    if switch is not None and switch.nargs == 0 and "--cpu" in arguments:
        for action in parser._actions:
            if action.dest == "pef":
                action.required = False


def _tell_nothing_tested(process: int) -> None:
    """Says that nothing has run on the device, where a script drops the command ``test``.

    A test that tests nothing is none that has passed, so the process ends with status 1. Python
    ignores what a handler raises, so it ends here, without those of ``atexit`` that were registered
    before the command line was parsed.
    """
    if not hasattr(sys, "last_value") and not session.has_run and os.getpid() == process:
        say(
            "test: nothing was tested, because nothing has run on the device: the script does "
            "nothing with this command. It would have to call samba.utils.trace_graph(...) and "
            "samba.session.run(...), and compare.",
            file=sys.stderr,
        )
        SambaAtexit.end(1)


def _tell_nothing_measured(command: str, process: int) -> None:
    """Says that nothing was measured: some apps drop the command that asks for it.

    Where nothing has run at all, the process ends with status 1, as :func:`_tell_nothing_tested`.
    """
    if hasattr(sys, "last_value") or os.getpid() != process:
        return  # an uncaught error has said enough, and a forked child is not asked
    why = "" if session.has_run else ", because the script does nothing with this command"
    say(
        f"{command}: nothing was measured{why}. It would have to call samba.utils."
        f"{command.replace('-', '_')}(...) or samba.utils.common.common_app_driver(...): "
        "docs/cost.md shows the lines.",
        file=sys.stderr,
    )
    if not session.has_run:
        SambaAtexit.end(1)


def note_measured() -> None:
    """Take note that something is measured in this process."""
    atexit.unregister(_tell_nothing_measured)


def _follow_redeclarations(
    parser: argparse.ArgumentParser, built_in: list[argparse.Action]
) -> set[str]:
    """Gives what is left of built-in options the defaults of the app's options for the same field.

    Returns the fields of the app's options.

    argparse takes the default of the first action of a field, which would be the built-in one.
    """
    apps: dict[str, argparse.Action] = {}
    for action in parser._actions:
        if action not in built_in:
            apps.setdefault(action.dest, action)
    for action in built_in:
        if action.dest in apps:
            action.default = apps[action.dest].default
            action.required = False
    return set(apps)


def parse_yaml_to_args(yaml_file: str | Path, args: argparse.Namespace) -> argparse.Namespace:
    """Puts the values of a YAML file over those of the command line.

    Args:
        yaml_file: A file of ``name: value`` lines; dashes in names become underscores.
        args: Parsed arguments, changed in place.

    Returns:
        ``args``.

    Raises:
        YamlError: The file says more than names and values.
        YamlMissing: There is no such file; a ``FileNotFoundError`` too.
        YamlUnreadable: It cannot be read; an ``OSError`` too.
    """
    yaml_file = path_of(yaml_file, "parse_yaml_to_args(yaml_file)")
    try:
        text = Path(yaml_file).read_text(encoding="utf-8")
    except ValueError as error:  # no UTF-8, or no path
        raise YamlUnreadable(path=str(yaml_file), found=str(error)) from None
    except OSError as error:
        kind = YamlMissing if isinstance(error, FileNotFoundError) else YamlUnreadable
        raise kind(path=str(yaml_file), found=error.strerror or str(error)) from None
    for name, value in parse_flat_yaml(text, where=str(yaml_file)).items():
        setattr(args, name.replace("-", "_"), value)
    return args


class SambaConfig:
    """The arguments of an app as a configuration object.

    Args:
        args: Parsed arguments.
        config: Class of the hardware's configuration; recorded only.
    """

    def __init__(self, args: argparse.Namespace, config: type | None = None) -> None:
        self.args = args
        self.config = config

    def get_all_params(self) -> dict[str, Any]:
        """All arguments by name."""
        return dict(vars(self.args))
