"""Kernels: the ways to run a product or a convolution, and the rule that chooses one.

A *candidate* is one way to compute something; all candidates of a kind compute the same, within
rounding. Which of them a shape takes is data: ``python -m bench tune`` measures them on a processor
and writes ``measured/<processor>.json``; :mod:`emulator.kernels.rules` reads it. Lowerings of
operations ask :mod:`emulator.kernels.products` and :mod:`emulator.kernels.convolutions`, and know
of none of this.
"""
