"""Plans: the steps of a run as one compiled executable."""
