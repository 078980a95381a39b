"""Lowerings: norm."""
