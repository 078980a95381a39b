"""A PEF in the forms of other tools: ``python -m samba export``, see docs/program.md."""
