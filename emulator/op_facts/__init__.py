"""Facts about operations for the tracer and the compiler, without lowerings and without jax."""
