"""Torch and the device compared, operation by operation: where do their numbers part?

``samba.utils.compare`` is the way in for scripts, ``python -m samba compare`` for a terminal.
"""
