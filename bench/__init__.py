"""Times training steps of this project and of its peers, side by side.

``python -m bench run`` is the command; see ``bench.commands`` for what it does.
"""
