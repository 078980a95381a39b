"""Lowerings: attention."""
