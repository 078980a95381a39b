"""Operations, a file for each family; ``emulator.ops.registry`` says how one is registered."""
