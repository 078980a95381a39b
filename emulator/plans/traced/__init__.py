"""What is asked of a plan that jax has traced: its operations, their sizes, which are equal."""
