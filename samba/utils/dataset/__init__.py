"""Data sets that SambaFlow scripts load through samba."""

from samba.utils.dataset import mnist

__all__ = ["mnist"]
