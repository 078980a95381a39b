"""Lowerings: compare."""
