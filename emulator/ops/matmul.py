"""Lowerings: matmul."""
