"""The signatures of ops as text, from torch's schemas: what ``emulator.op_facts`` keeps of them."""

from __future__ import annotations

from typing import Any

import torch

from emulator.op_facts.facts import OpFacts
from emulator.op_facts.names import CHECKED_BRANCH
from pef_schema.program import CUSTOM_GRADIENT

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
