"""Regenerate what ``emulator/op_facts`` holds of the ops of ``emulator/ops``.

    python tools/regen_op_facts.py            write emulator/op_facts/ops.json
    python tools/regen_op_facts.py --check    exit 1 if it does not match the ops

An op is defined in one place, its decorator. The tracer and the compiler need its facts without
its lowering, which would load jax, and the device holds nodes against the signatures of torch's
ops, without torch: the file holds a record of each op with both.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "emulator" / "op_facts" / "ops.json"

if str(ROOT) not in sys.path:  # run as a script, the ops are those of this tree
    sys.path.insert(0, str(ROOT))

from emulator.op_facts.facts import OpFacts  # noqa: E402  # after the path is set
from emulator.ops.registry import load_ops  # noqa: E402  # after the path is set
from tools.op_signatures import signature_of  # noqa: E402  # after the path is set


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
    """Return the text of the file.

    Args:
        ops: Ops by name.

    Returns:
        JSON: one op a line, sorted.
    """
    records = {
        name: facts.to_record() | {"signature": signature_of(name, facts)}
        for name, facts in facts_of(ops).items()
    }
    lines = [
        f"{json.dumps(name)}: {json.dumps(record)}" for name, record in sorted(records.items())
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


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
    wanted = generate(load_ops())
    if not args.check:
        RECORDS.write_text(wanted, encoding="utf-8")
        print(f"{RECORDS.name} written")
        return 0
    if not RECORDS.exists() or RECORDS.read_text(encoding="utf-8") != wanted:
        print(
            f"{RECORDS.name} does not match emulator/ops; run python tools/regen_op_facts.py",
            file=sys.stderr,
        )
        return 1
    print(f"{RECORDS.name} matches")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
