"""The accuracy report of a training run."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from pef_schema.atomic import write_atomically
from samba.support.given import path_of

__all__ = ["AccuracyReport"]


class AccuracyReport:
    """Collects what a training run reached and writes it as JSON.

    Args:
        train_metrics: Numbers of the training set by name.
        val_metrics: Numbers of the validation set by name, e.g. ``acc`` and ``loss``.
        val_accuracy: Older form of ``val_metrics={"acc": ...}``.
        batch_size: Samples in a batch.
        num_iterations: Steps that were run.
        **others: More entries.

    Example:
        >>> AccuracyReport(val_metrics={"acc": 97.5}, batch_size=32, num_iterations=100).entries
        {'val_metrics': {'acc': 97.5}, 'batch_size': 32, 'num_iterations': 100}
    """

    def __init__(
        self,
        train_metrics: Mapping[str, Any] | None = None,
        val_metrics: Mapping[str, Any] | None = None,
        val_accuracy: float | None = None,
        batch_size: int | None = None,
        num_iterations: int | None = None,
        **others: Any,
    ) -> None:
        entries: dict[str, Any] = {
            "train_metrics": train_metrics,
            "val_metrics": val_metrics,
            "val_accuracy": val_accuracy,
            "batch_size": batch_size,
            "num_iterations": num_iterations,
            **others,
        }
        self.entries = {key: value for key, value in entries.items() if value is not None}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the report.

        Args:
            path: The JSON file; its folder must exist.

        Raises:
            SambaError: It cannot be written; a file that was there is left as it was.
        """
        text = json.dumps(self.entries, indent=2, default=_number) + "\n"
        write_atomically(path_of(path, "AccuracyReport.save(path)"), [text.encode()])


def _number(value: Any) -> Any:
    """A 0-d tensor or array as a number, an array as a list, the rest as text."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return dict(value) if isinstance(value, Mapping) else str(value)
