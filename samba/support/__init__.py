"""Helpers that do not depend on models: names, containers, arguments, progress, timelines."""
