"""Data parallel steps on paper: links, all-reduces and the scheduler's own order, without jax."""
