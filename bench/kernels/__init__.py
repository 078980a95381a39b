"""Times of the native kernels beside XLA's and torch's: ``python -m bench kernels``."""
