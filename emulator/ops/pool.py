"""Lowerings: pool."""
