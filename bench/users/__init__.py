"""The gate for a user's own PEF: sections of a program that no case of the bench holds."""
