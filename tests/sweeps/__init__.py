"""Families of programs drawn whole: each ends as with torch, or is refused or told by name."""
