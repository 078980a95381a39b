"""Lowerings: pointwise."""
