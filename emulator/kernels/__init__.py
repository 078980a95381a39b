"""Kernels: the ways to run a product or a convolution, and the rule that chooses one.

A *candidate* is one way to compute something; all candidates of a kind compute the same, within
rounding. Each candidate says which problems it can compute and which it is fastest for, by limits
that ``python -m bench kernels`` is for (:mod:`emulator.kernels.problems`). Lowerings of operations
ask :mod:`emulator.kernels.products` and :mod:`emulator.kernels.convolutions`, and know of none of
this.
"""
