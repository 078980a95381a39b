"""Files made to cost their reader much: each by one part of a program, as large as it may be."""

from __future__ import annotations

from tests.pef_schema import heavy_data, heavy_runs
from tests.pef_schema.heavy_parts import HEAVY

__all__ = ["HEAVY", "SOURCES"]

SOURCES = (heavy_data, heavy_runs)
"""Modules that fill the table when they are imported."""
