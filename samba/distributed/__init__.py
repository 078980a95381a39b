"""Data parallel runs: how replicas start, find each other, train as one and fail as one."""
