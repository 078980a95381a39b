"""Training scripts of the usual kinds, each written once, run by torch and on the device."""
