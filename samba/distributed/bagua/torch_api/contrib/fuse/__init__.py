"""Upstream's place of :mod:`optimizer`."""
