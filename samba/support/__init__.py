"""Helpers that know nothing of models: names, containers, keywords, progress, a bounded queue."""
