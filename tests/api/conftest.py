"""PEFs and traces that the tests of ``tests/samba`` share."""

from tests.samba.conftest import pefs, shared_executables, shared_traces

__all__ = ["pefs", "shared_executables", "shared_traces"]
