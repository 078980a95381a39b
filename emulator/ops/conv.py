"""Lowerings: conv."""
