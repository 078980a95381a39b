"""An HTML page about a PEF: ``python -m samba report``, see docs/program.md."""
