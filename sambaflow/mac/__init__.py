"""Compiler hints that scripts import."""
