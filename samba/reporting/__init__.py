"""One page about a PEF, for a person: ``python -m samba report``, see docs/program.md."""
