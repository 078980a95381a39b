"""Configuration of compile and run as pydantic models."""
