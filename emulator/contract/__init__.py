"""Checks that the device can run a program, in addition to the checks of every PEF."""
