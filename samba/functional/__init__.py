"""Functional interface."""
