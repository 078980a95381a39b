"""Simulated data parallel steps."""
