"""Errors that users see. Every message says where, what was found, what was wanted, what to do."""

from __future__ import annotations


class SambaError(Exception):
    """Base of every error this project raises on purpose."""
