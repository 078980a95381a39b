"""Tests of what XLA fuses; `make test` runs them by themselves, with XLA's fusion emitters."""
