"""PEFs that the tests of ``tests/samba`` share."""

from tests.samba.conftest import pefs, shared_executables

__all__ = ["pefs", "shared_executables"]
