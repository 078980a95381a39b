"""Containers that scripts import from here."""

from samba.support.ordered_set import OrderedSet

__all__ = ["OrderedSet"]
