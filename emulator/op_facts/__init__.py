"""Facts of ops without their lowerings: what the tracer and the compiler ask, free of jax."""
