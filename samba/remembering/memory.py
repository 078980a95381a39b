"""Whether a model was found equal to a PEF before, on this machine: then it is not traced again."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from emulator.handler_errors import raise_error_of_handler
from emulator.kept_files import KeptFiles, kept_files
from pef_schema.program import Graph
from samba.errors import ArgumentError, literal
from samba.remembering.records import Record, record_of, trace_of
from samba.remembering.stand_ins import Incomparable
from samba.remembering.trace_key import trace_key
from samba.support.deviations import hearing, tell
from samba.tracer.inputs import TraceInputs
from samba.tracer.traced import Traced

_LOG = logging.getLogger(__name__)

TRACE_VARIABLE = "SAMBA_TRACE"
"""Environment variable: ``always`` lets every model be traced."""

_LIMIT = 1 << 26
"""Most bytes of traces that are remembered."""


class TraceMemory:
    """What is remembered, or will be, of the trace of one model for one PEF.

    Args:
        files: Where traces are kept.
        model, given, inference: What is traced.

    Raises:
        Exception: As :func:`samba.remembering.trace_key.trace_key`.
    """

    def __init__(
        self, files: KeptFiles, model: torch.nn.Module, given: TraceInputs, *, inference: bool
    ) -> None:
        self._files, self._model, self._given, self._inference = files, model, given, inference
        self._told: list[tuple[str, str]] = []
        self._key = self._key_now()

    def _key_now(self) -> str:
        """What the trace depends on, except the PEF."""
        return trace_key(self._model, self._given, inference=self._inference)

    def recall(self, graph: Graph, *, pef: str) -> Traced | None:
        """The trace, if it is remembered; what was told with it is told again.

        Args:
            graph: The graph in the PEF.
            pef: Digest of the PEF.

        Returns:
            The trace as it was compared with the graph, with the model's tensors; None if there is
            none, or what it depends on has changed.
        """
        name = self._name(pef)
        data = self._files.get(name)
        if data is None:
            return None
        try:
            record = Record.from_bytes(data)
            traced = trace_of(record, self._model, self._given, graph)
        except Exception as error:
            raise_error_of_handler(error)
            _LOG.info("a remembered trace cannot be read, so the model is traced: %s", error)
            self._files.drop(name)
            return None
        if traced is not None:
            _LOG.info("a remembered trace of this model is used")
            for deviation, text in record.told:
                tell(deviation, text)
        return traced

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While active, the trace is made, and what is told is part of it."""
        with hearing() as deviations:
            yield
        self._told = deviations

    def keep(self, traced: Traced, graph: Graph, *, pef: str) -> None:
        """Remember a trace that computes what the graph in the PEF does.

        ``forward`` is called once more for that. If it does something else after a trace, it has
        state that nothing here sees, and what a later process would trace is not known.

        Args:
            traced: The trace, as it was compared.
            graph: The graph.
            pef: Digest of the PEF.
        """
        try:
            if self._key_now() != self._key:
                raise Incomparable("forward()", "behaves differently in a later call")
            record = record_of(traced, graph, told=self._told)
        except Exception as error:
            raise_error_of_handler(error)
            _LOG.info("the trace of this model cannot be remembered: %s", error)
            return
        if record is not None:
            self._files.put(self._name(pef), record.to_bytes())

    def _name(self, pef: str) -> str:
        return hashlib.sha256(f"{self._key} {pef}".encode()).hexdigest()


def remembers_traces() -> bool:
    """Whether traces are remembered: unless ``SAMBA_TRACE`` says otherwise.

    Raises:
        ArgumentError: If it is neither empty nor ``always``.

    Example:
        >>> remembers_traces()
        True
    """
    wish = os.environ.get(TRACE_VARIABLE, "").strip()
    if wish not in ("", "always"):
        wanted = "always, or nothing"
        raise ArgumentError(where=TRACE_VARIABLE, found=literal(wish), wanted=wanted)
    return not wish


def open_memory(
    model: torch.nn.Module, given: TraceInputs, *, inference: bool
) -> TraceMemory | None:
    """The memory of a trace that is about to be made.

    Args:
        model: The model.
        given: The inputs.
        inference: The mode of the trace.

    Returns:
        The memory; None if nothing is kept, or the trace depends on what cannot be compared. The
        log says what that is.

    Raises:
        ArgumentError: If ``SAMBA_TRACE`` is neither empty nor ``always``.
    """
    files = kept_files("traces", limit=_LIMIT) if remembers_traces() else None
    if files is None:
        return None
    try:
        return TraceMemory(files, model, given, inference=inference)
    except Exception as error:  # forward() may raise anything; its trace says what is wrong
        raise_error_of_handler(error)
        _LOG.info("the trace of this model cannot be remembered: %s", error)
        return None
