"""Tracing of the parts of ``forward`` that depend on data; others are refused by name.

Two forms have a static graph that is right for all data:

* selections by value, such as ``x[mask]`` (``masked_rows``, by the rules of ``rowwise``): tables
  with a row for every entry of the mask, whose rows must meet again in a sum or a write;
* loops over what was hit, ``for entry in hit.nonzero():`` (``loops``): a turn for every entry,
  whose writes in place are undone where the entry was not hit; ``turns`` keeps the gradient of
  what was undone at 0.

Branches on values go one of three ways (``branches``): what follows from constants and from buffers
that forward leaves alone is computed (``known_values``, ``constant_shapes``); of a branch that
raises on one side (``source_tests``), or that asks whether numbers are finite (``known_values``),
the graph has the other side and a check that every run makes; all others are refused. Numbers that
``forward`` takes out of tensors (``taken_numbers``) are followed back to these.

A loop that leaves anything else behind, or asks how many entries were hit, raises
``DataDependentBranch`` at once. A selection without such a form stays in the graph, where
``samba/tracer/lowering.py`` refuses it with ``UnsupportedOps``. ``docs/models.md`` lists what is
traced, what it costs, and every refusal.
"""
