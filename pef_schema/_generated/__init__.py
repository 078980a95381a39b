"""Code made by tools/regen_schema.py."""
