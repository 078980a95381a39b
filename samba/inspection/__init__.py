"""Looking into a PEF: what it is, what it costs, where its time goes; for people and as files."""
