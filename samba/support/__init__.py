"""Helpers that know nothing of models: names, containers, arguments, progress, timelines."""
