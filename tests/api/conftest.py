"""PEFs and traces that the tests of ``tests/samba`` share."""

from tests.samba.conftest import pefs, scene, shared_executables, shared_traces

__all__ = ["pefs", "scene", "shared_executables", "shared_traces"]
