"""Regenerate what ``emulator/op_facts`` holds of the ops of ``emulator/ops``.

    python tools/regen_op_facts.py            write the generated files
    python tools/regen_op_facts.py --check    exit 1 if one does not match the ops

An op is defined in one place, its decorator. The tracer and the compiler need its facts without
its lowering, which would load jax; ``_generated.py`` holds a copy of them. The device holds nodes
against the signatures of torch's ops, without torch; ``_signatures.py`` holds these.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GENERATED = ROOT / "emulator" / "op_facts" / "_generated.py"
SIGNATURES = ROOT / "emulator" / "op_facts" / "_signatures.py"

if str(ROOT) not in sys.path:  # run as a script, the ops are those of this tree
    sys.path.insert(0, str(ROOT))

from emulator.op_facts.facts import OpFacts  # noqa: E402  # after the path is set
from emulator.ops.registry import load_ops  # noqa: E402  # after the path is set
from tools.op_signatures import generate_signatures  # noqa: E402  # after the path is set


def facts_of(ops: Mapping[str, OpFacts]) -> dict[str, OpFacts]:
    """The plain facts of ops, without what else is known of them.

    Args:
        ops: The registry, or any ops by name.

    Returns:
        The facts by name.
    """
    names = [field.name for field in fields(OpFacts)]
    return {op: OpFacts(**{n: getattr(spec, n) for n in names}) for op, spec in ops.items()}


def generate(ops: Mapping[str, OpFacts]) -> str:
    """Return the text of the generated module.

    Args:
        ops: Ops by name.

    Returns:
        Python source: groups of ops with equal facts, sorted by the facts as they are written.
    """
    groups: dict[str, list[str]] = {}
    for name, facts in facts_of(ops).items():
        groups.setdefault(_written(facts), []).append(name)
    lines = [
        '"""Made from the ops of emulator/ops by tools/regen_op_facts.py; do not edit."""',
        "",
        "from emulator.op_facts.facts import OpFacts",
        "",
        "GROUPS: tuple[tuple[OpFacts, str], ...] = (",
    ]
    for written, names in sorted(groups.items()):
        text = textwrap.fill(
            " ".join(sorted(names)),
            width=100,
            initial_indent=" " * 8,
            subsequent_indent=" " * 8,
            break_long_words=False,
            break_on_hyphens=False,
        )
        lines += ["    (", f"        {written},", '        """', text, '        """,', "    ),"]
    lines += [")", ""]
    return "\n".join(lines)


def _written(facts: OpFacts) -> str:
    """The facts as an expression; defaults are left out."""
    stated = [
        f"{field.name}={getattr(facts, field.name)!r}"
        for field in fields(facts)
        if getattr(facts, field.name) != field.default
    ]
    return f"OpFacts({', '.join(stated)})"


def main(argv: list[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: Arguments, those of the process by default.

    Returns:
        Exit status.
    """
    parser = argparse.ArgumentParser(description="Regenerate the facts of the ops.")
    parser.add_argument("--check", action="store_true", help="only compare, write nothing")
    args = parser.parse_args(argv)
    ops = load_ops()
    stale = False
    for path, wanted in ((GENERATED, generate(ops)), (SIGNATURES, generate_signatures(ops))):
        current = path.read_text(encoding="utf-8") if path.exists() else ""
        if args.check and current != wanted:
            print(
                f"{path.name} does not match emulator/ops; run python tools/regen_op_facts.py",
                file=sys.stderr,
            )
            stale = True
            continue
        if not args.check:
            path.write_text(wanted, encoding="utf-8")
        print(f"{path.name} {'matches' if args.check else 'written'}")
    return int(stale)


if __name__ == "__main__":
    raise SystemExit(main())
