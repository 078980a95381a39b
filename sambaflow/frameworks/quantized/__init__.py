"""Quantized layers that scripts import."""
