"""Kernels written with oneDNN; plans for a single processor call them through jax's FFI.

``src/`` holds their sources in C++, a file for each family. They are compiled when the package is
installed from source. :mod:`emulator.native.library` loads them. Where they are missing, XLA's own
code computes the same.
"""
