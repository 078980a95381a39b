"""Reports about a PEF: its contents, its cost and its times, as text and as files."""
