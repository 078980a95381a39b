"""Convert a PEF to the formats of other tools: ``python -m samba export``, see docs/program.md."""
