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
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "emulator" / "op_facts" / "ops.json"

if str(ROOT) not in sys.path:  # run as a script, the ops are those of this tree
    sys.path.insert(0, str(ROOT))

from emulator.op_facts.facts import OpFacts  # noqa: E402  # after the path is set
from emulator.op_facts.names import CHECKED_BRANCH  # noqa: E402  # after the path is set
from emulator.ops.registry import load_ops  # noqa: E402  # after the path is set
from pef_schema.program import CUSTOM_GRADIENT  # noqa: E402  # after the path is set

_KINDS = {
    "Tensor": "t",
    "Optional[Tensor]": "t?",
    "List[Tensor]": "t*",
    "List[Optional[Tensor]]": "t?*",
    "int": "i",
    "Optional[int]": "i?",
    "List[int]": "i*",
    "Optional[List[int]]": "i*?",
    "float": "f",
    "Optional[float]": "f?",
    "Optional[List[float]]": "f*?",
    "number": "n",
    "Optional[number]": "n?",
    "bool": "b",
    "Optional[bool]": "b?",
    "ScalarType": "d",
    "Optional[ScalarType]": "d?",
    "str": "s",
    "Optional[str]": "s?",
    # What means nothing on the device is left out of a graph, or None.
    "Optional[Device]": "x",
    "Optional[Layout]": "x",
    "Optional[Generator]": "x",
    "Optional[MemoryFormat]": "x",
    "MemoryFormat": "x",
}
"""Letters of ``emulator.op_facts.table`` by torch's name of a type."""

_OWN = {
    "aten.special_round.decimals": "self:t * decimals:i > t",
    "samba.cast_bf16.input": "self:t mode:s * seed:t?= stream:i?= > t",
    "samba.cast_bf16.result": "self:t mode:s * seed:t?= stream:i?= > t",
    "samba.next_seed": "seed:t > t",
    "samba.ctc_loss.default": "log_probs:t targets:t input_lengths:t target_lengths:t longest:i "
    "blank:i= reduction:s= zero_infinity:b= > t",
    CHECKED_BRANCH: "failed:t condition:t taken:b > t",
    "samba.embedding_renorm.default": "weight:t indices:t max_norm:f norm_type:f > t",
    CUSTOM_GRADIENT: "gradient:i results:t* inputs:t* reads:t* > t*",
    "samba.grouped_mm.default": "mat_a:t mat_b:t offs:t?= > t",
}
"""Ops that torch has no schema of."""

_RATES = frozenset({"p", "dropout_p", "dropout"})
"""Arguments that the tracer makes argins of."""


def signature_of(name: str, facts: OpFacts) -> str:
    """The signature of one op, as ``emulator.op_facts.table`` reads it.

    Args:
        name: Full name.
        facts: Its facts: an op that draws takes a seed and a stream beside what torch knows.
    """
    if name in _OWN:
        return _OWN[name]
    namespace, packet, overload = name.split(".")
    schema: Any = getattr(getattr(getattr(torch.ops, namespace), packet), overload)._schema
    parts: list[str] = []
    starred = False
    for argument in schema.arguments:
        if argument.kwarg_only and not starred:
            starred = True
            parts.append("*")
        kind = _kind(argument, random=facts.random)
        default = "=" if argument.has_default_value() else ""
        parts.append(f"{argument.name}:{kind}{default}")
    if facts.random:
        parts += ([] if starred else ["*"]) + ["seed:t=", "stream:i="]
    results = " ".join(_KINDS[str(r.real_type)] for r in schema.returns)
    return f"{' '.join(parts)} > {results}"


def _kind(argument: Any, *, random: bool) -> str:
    if random and argument.name in _RATES:
        return "r"
    kind = _KINDS[str(argument.real_type)]
    # A list of known length may be given as one number for all of it.
    return kind.replace("*", f"*{argument.N}") if argument.N else kind


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
    text = generate(load_ops())
    if not args.check:
        RECORDS.write_text(text, encoding="utf-8")
        print(f"{RECORDS.name} written")
        return 0
    if not RECORDS.exists() or RECORDS.read_text(encoding="utf-8") != text:
        print(
            f"{RECORDS.name} does not match emulator/ops; run python tools/regen_op_facts.py",
            file=sys.stderr,
        )
        return 1
    print(f"{RECORDS.name} matches")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
