"""Times of kernels, from which the rules of :mod:`emulator.kernels.rules` are made."""
