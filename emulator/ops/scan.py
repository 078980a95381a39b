"""Lowerings: scan."""
