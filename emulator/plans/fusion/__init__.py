"""Which values XLA makes in memory, once, and which each of its kernels makes for itself."""
