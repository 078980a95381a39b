"""What depends on data in ``forward`` and is traced all the same, or refused by name."""
