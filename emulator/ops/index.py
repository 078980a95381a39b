"""Lowerings: index."""
