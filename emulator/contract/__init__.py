"""What a program must be for the device to run it, beyond what every PEF is."""
