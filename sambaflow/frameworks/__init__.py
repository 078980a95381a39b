"""Layers of other frameworks that scripts import."""
