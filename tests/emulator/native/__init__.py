"""The native kernels: what they compute, and when they are left out."""
