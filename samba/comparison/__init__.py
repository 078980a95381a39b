"""Compare torch and the device, operation by operation, and find where their numbers differ.

``samba.utils.compare`` is the way in for scripts, ``python -m samba compare`` for a terminal.
"""
