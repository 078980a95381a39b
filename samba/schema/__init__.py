"""Descriptions of the hardware that scripts ask for."""
