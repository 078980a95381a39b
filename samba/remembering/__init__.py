"""Traces that outlive the process: what they depend on, and where they are kept."""
