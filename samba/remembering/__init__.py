"""Traces that are kept between processes: what they depend on, and where they are stored."""
