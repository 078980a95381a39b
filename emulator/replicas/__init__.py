"""Runs divided between replicas: plans and reductions, their order, and the communication."""
