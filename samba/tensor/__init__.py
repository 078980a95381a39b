"""The parts of a SambaTensor: its names, host memory, device memory and treatment by torch."""
