"""The cost of a program: operations, bytes, and a lower bound on its time on a machine."""
