"""The graphs of one PEF, and the rules that they keep together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from pef_schema.errors import SambaError
from pef_schema.program import Role
from samba.sambatensor import SambaTensor
from samba.tracer.inputs import NamedInput
from samba.tracer.traced import Traced


class GraphConflict(SambaError):
    """Graphs of one PEF do not go together.

    Attributes:
        problems: What was found, a sentence for each.
    """

    deviation = "graph-conflict"

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("graphs of one PEF:\n  " + "\n  ".join(problems))


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphPart:
    """One graph to be: what a :class:`FwdGraph` covers of the traces.

    Args:
        traced: Its nodes and sources, under the names and regions that its tensors have now.
        given: Its inputs, for matching what ``run`` is given.
        outputs: Handles of its results.
    """

    traced: Traced
    given: tuple[NamedInput, ...]
    outputs: tuple[SambaTensor, ...]


def conflicts(parts: Sequence[GraphPart]) -> None:
    """Check graphs of one PEF against each other.

    Args:
        parts: The graphs.

    Raises:
        GraphConflict: Two tensors have one name or one region where they may not.
    """
    problems = [*_inputs(parts), *_outputs(parts), *_weights(parts)]
    if problems:
        raise GraphConflict(problems)


def _inputs(parts: Sequence[GraphPart]) -> Iterator[str]:
    owner: dict[str, tuple[torch.Tensor, str]] = {}
    for part in parts:
        for given in part.given:
            who = f"{given.name} of {part.traced.name}"
            first, other = owner.setdefault(given.region_name, (given.tensor, who))
            if first is not given.tensor:
                yield (
                    f"inputs {other} and {who} share region {given.region_name}; two inputs must "
                    "not. Give one tensor object to both graphs, or give each tensor a name and a "
                    "region of its own."
                )


def _outputs(parts: Sequence[GraphPart]) -> Iterator[str]:
    owner: dict[str, tuple[SambaTensor, str]] = {}
    for part in parts:
        places: dict[str, str] = {}
        for tensor in part.outputs:
            name, region = tensor.sn_name, tensor.sn_region_name
            first, other = owner.setdefault(name, (tensor, part.traced.name))
            if first is not tensor:
                yield (
                    f"graphs {other} and {part.traced.name} both have an output {name}. Give each "
                    "trace_multigraph its own trace_prefix."
                )
            if region in places:
                yield (
                    f"graph {part.traced.name} has outputs {places[region]} and {name} in one "
                    f"region, {region}; only one of them could be read."
                )
            places[region] = name


def _weights(parts: Sequence[GraphPart]) -> Iterator[str]:
    owner: dict[str, tuple[torch.Tensor | None, str]] = {}
    told: set[str] = set()
    for part in parts:
        for source in part.traced.sources:
            if source.role not in (Role.WEIGHT, Role.BUFFER):
                continue
            first, other = owner.setdefault(source.name, (source.tensor, part.traced.name))
            if first is not source.tensor and part.traced.name not in told:
                told.add(part.traced.name)
                yield (
                    f"graphs {other} and {part.traced.name} have different parameters or buffers "
                    f"named {source.name}. Convert each module with its own prefix: "
                    "samba.from_torch_model_(module, parent_module_prefix=...)."
                )
