"""The device: sections of a Program, JIT-compiled by jax over memory of its own; no torch."""

from emulator.versions import check_jax

check_jax()
