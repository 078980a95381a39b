"""Operations as objects, under the paths that scripts know from tracebacks."""
