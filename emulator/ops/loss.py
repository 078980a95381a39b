"""Lowerings: loss."""
