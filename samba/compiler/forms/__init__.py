"""Graphs of a program in the forms that other tools read."""
