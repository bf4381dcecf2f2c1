"""Flower's interfaces beyond its public packages: nodes, runs and messages, in Flower's own words.

Flower promises to keep `flwr.app`, `flwr.clientapp`, `flwr.serverapp` and `flwr.simulation`. Everything else may move
with a minor version and is imported in `private.py` alone; it is tried with flwr 1.41 and 1.42.
"""
