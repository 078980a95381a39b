"""The stages of placement as values: each stage returns one, and the next one takes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pef_schema.program import Output, Role, Update, Value
from samba.compiler.backward_needs import BackwardNeeds
from samba.compiler.boundary import Boundary
from samba.compiler.sectioned import SectionedGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedSources:
    """A graph whose sources have regions.

    Args:
        graph: The graph.
        values: Its values; sources, and seeds that it advances, have a region.
        updates: State that it changes, with the region that takes the new value.
    """

    graph: SectionedGraph
    values: tuple[Value, ...]
    updates: tuple[Update, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedOutputs:
    """A graph whose sources and results have regions.

    Args:
        sources: The stage before.
        outputs: The results.
    """

    sources: PlacedSources
    outputs: tuple[Output, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedActivations:
    """A graph of which everything but gradients has regions.

    Args:
        outputs: The stage before.
        boundary: What passes from section to section.
        needs: What the backward pass of each section needs.
        values: The graph's values with all their regions.
    """

    outputs: PlacedOutputs
    boundary: Boundary
    needs: tuple[BackwardNeeds, ...]
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedGraph:
    """A graph with all its regions; its sections can be written down.

    Args:
        graph: The graph.
        values: Its values with their regions and those of their gradients.
        outputs: Its results.
        output_writers: For each of them, the section that writes its region.
        updates: State that it changes.
        update_writers: For each of these, the section that writes its region.
        needs: What the backward pass of each section needs.
        last_writers: For each region of a source with a gradient, the section whose backward
            pass is the last to write that gradient.
    """

    graph: SectionedGraph
    values: tuple[Value, ...]
    outputs: tuple[Output, ...]
    output_writers: tuple[int, ...]
    updates: tuple[Update, ...]
    update_writers: tuple[int, ...]
    needs: tuple[BackwardNeeds, ...]
    last_writers: Mapping[int, int]

    def weight_gradients(self) -> dict[int, int]:
        """The regions of the weights' gradients, with the regions of their weights."""
        weights = [self.values[s.value] for s in self.graph.traced.sources if s.role is Role.WEIGHT]
        return {w.grad_region: w.region for w in weights if w.grad_region >= 0}
