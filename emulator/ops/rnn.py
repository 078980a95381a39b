"""Lowerings: rnn."""
