"""Tools for models, scripts and PEFs.

python -m samba inspect    show what a PEF contains, see docs/program.md
python -m samba diff       show where two PEFs differ, see docs/program.md
python -m samba estimate   print lower bounds on section times, see docs/cost.md
python -m samba memory     predict the memory of a run along its schedule, see docs/run.md
python -m samba export     convert a PEF to DOT, JSON, ONNX or StableHLO, see docs/program.md
python -m samba report     write an HTML page about a PEF, see docs/program.md
python -m samba compare    compare torch and the device side by side, see docs/run.md
python -m samba launch     start replicas of a script, see docs/data_parallel.md
"""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from pef_schema.printable import say, say_text
from samba.argconf.options import COMMANDS

_COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "inspect": "samba.inspection.inspect_command",
        "diff": "samba.inspection.diff_command",
        "estimate": "samba.inspection.estimate",
        "memory": "samba.inspection.memory_command",
        "export": "samba.exporting.export_command",
        "report": "samba.reporting.report_command",
        "compare": "samba.comparison.command",
        "launch": "samba.distributed.launch_command",
    }
)
"""Modules with a function ``run(arguments)``, loaded for their command alone: some load torch."""

_OF_SCRIPTS: Mapping[str, str] = MappingProxyType(
    {
        **{
            command: f"give it to your script: python app.py {command} "
            f"({'docs/cost.md' if command.startswith('measure') else 'docs/tutorial.md'})"
            for command in COMMANDS
        },
        "timeline": "a script records one: python app.py run --timeline FILE, or "
        "samba.session.start_timeline(FILE) (docs/run.md, A timeline of runs)",
        "metrics": "a script counts them: SAMBA_METRICS=1 python app.py run, or "
        "samba.session.metrics() (docs/run.md, What has a session done?)",
        "evaluate": "call samba.session.evaluator(model) in a script (docs/evaluation.md)",
        "gate": "use python -m bench gate --pef FILE (docs/cost.md)",
        "verify": "use python -m emulator verify FILE",
    }
)
"""What is not a command here, although pages tell of it, and where it is."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point.

    Args:
        argv: Arguments without the program name; the process's own if None.

    Returns:
        The exit code.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    if arguments[:1] in ([], ["-h"], ["--help"], ["help"]):
        say_text(__doc__ or "")
        return 0 if arguments else 2
    module = _COMMANDS.get(arguments[0])
    if module is None and arguments[0] in _OF_SCRIPTS:
        text = f"python -m samba: {arguments[0]} is not a command; {_OF_SCRIPTS[arguments[0]]}."
        say(text, file=sys.stderr)
        return 2
    if module is None:
        close = difflib.get_close_matches(arguments[0], _COMMANDS, n=1, cutoff=0.4)
        guess = f", did you mean {close[0]!r}?" if close else "."
        *others, last = _COMMANDS
        say(
            f"python -m samba: no command {arguments[0]!r}{guess} "
            f"The commands are {', '.join(others)} and {last}; --help says what they do.",
            file=sys.stderr,
        )
        return 2
    return importlib.import_module(module).run(arguments[1:])


if __name__ == "__main__":
    sys.exit(main())
