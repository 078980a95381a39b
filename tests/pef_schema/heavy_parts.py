"""Parts that many of the files have which are made to cost their reader much."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.pef_schema.sheet import Places, Sheet, Tables

HEAVY: dict[str, Callable[[int], bytes]] = {}
"""Makers of files by name; their argument says how large the part is."""


def heavy(lay_out: Callable[[Sheet, int], Tables]) -> Callable[[Sheet, int], Tables]:
    """Add a maker to the table: what it lays out, and the root's own strings, which come last."""

    def make(count: int) -> bytes:
        sheet = Sheet()
        root = lay_out(sheet, count)
        sheet.link(root, "name", sheet.string("net"))
        sheet.link(root, "mapping", sheet.string("section"))
        return sheet.pef(root)

    HEAVY[lay_out.__name__.lstrip("_")] = make
    return lay_out


def program(sheet: Sheet, fields: str) -> Tables:
    """Lay out the root of an inference program with some of its vectors."""
    root = sheet.tables("Program", f"name mapping inference {fields}")
    sheet.put(root, "inference", 1)
    return root


def training(sheet: Sheet, fields: str) -> Tables:
    """Lay out the root of a program that may have a backward pass."""
    return sheet.tables("Program", f"name mapping {fields}")


def regions(sheet: Sheet, root: Tables, count: int, role: Any = 3, dtype: Any = 9) -> None:
    """Lay out regions of no dimension."""
    sheet.rows(root, "regions", "Region", count=count, stem="r", dtype=dtype, role=role)


def graph_of(sheet: Sheet, root: Tables, fields: str = "") -> Tables:
    """Lay out the only graph."""
    return sheet.rows(root, "graphs", "Graph", fields, stem="g")


def values_of(sheet: Sheet, graph: Tables, count: int = 1, **columns: Any) -> Tables:
    """Lay out values of no dimension that live in the first region, or where columns say."""
    columns = {"dtype": 9, "region": 0} | columns
    return sheet.rows(graph, "values", "Value", count=count, stem="v", **columns)


def schedule(sheet: Sheet, root: Tables, called: Any = ()) -> None:
    """Lay out the only schedule, which calls these sections."""
    row = sheet.rows(root, "schedules", "Schedule", "calls", graph=0)
    count = len(called)
    calls = sheet.children(row, "calls", count)
    if count:
        rows = sheet.tables("Call", "call_id section", count)
        sheet.point(calls, rows.at)
        sheet.put(rows, "call_id", np.arange(count))
        sheet.put(rows, "section", called)


def lists(sheet: Sheet, parents: Tables, name: str, each: int) -> Places:
    """Lay out a vector of as many references for each parent, to be filled later."""
    count = len(parents.at)
    at = sheet.take((4 + 4 * each) * count) + (4 + 4 * each) * np.arange(count, dtype=np.int64)
    sheet.columns.append((at, "I", each))
    sheet.link(parents, name, at)
    return at


def fill(sheet: Sheet, vectors: Places, rows: Tables) -> None:
    """Let vectors of references lead to tables, to the first ones from the first vector."""
    for number, targets in enumerate(rows.at.reshape(len(vectors), -1).T):
        places = vectors + 4 + 4 * number
        sheet.columns.append((places, "I", targets - places))


def sections(
    sheet: Sheet, root: Tables, fields: str, count: int, kind: Any = 2, twin: Any = 0
) -> Tables:
    """Lay out sections of one step each, and return the steps."""
    rows = sheet.rows(root, "sections", "Section", "steps", count, stem="s", twin=twin)
    of = lists(sheet, rows, "steps", 1)
    steps = sheet.tables("Step", f"kind graph {fields}", count)
    fill(sheet, of, steps)
    sheet.put(steps, "kind", kind)
    sheet.put(steps, "graph", np.where(np.isin(kind, (2, 3)), 0, -1))
    return steps


def singles(sheet: Sheet, numbers: Any) -> Places:
    """Lay out vectors of one index each."""
    count = len(numbers)
    at = sheet.take(8 * count) + 8 * np.arange(count, dtype=np.int64)
    sheet.columns += [(at, "I", 1), (at + 4, "i", numbers)]
    return at


def long_singles(sheet: Sheet, numbers: Any) -> Places:
    """Lay out vectors of one number of 64 bits each."""
    count = len(numbers)
    at = sheet.take(16 * count, 8, after=4) + 16 * np.arange(count, dtype=np.int64)
    sheet.columns += [(at, "I", 1), (at + 4, "q", numbers)]
    return at
