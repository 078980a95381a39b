"""Tests of what XLA fuses; they need its emitters of fusions, see ``tests/conftest.py``."""
