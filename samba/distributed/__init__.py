"""Data parallel training: how replicas start, connect, train together and fail together."""
