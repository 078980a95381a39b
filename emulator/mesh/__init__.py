"""A device of several chips: how regions are split among them, and the chips themselves."""
