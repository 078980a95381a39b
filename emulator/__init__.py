"""The device: sections of a Program, JIT-compiled by jax and run on its own memory; no torch."""

from emulator.versions import check_jax

check_jax()
