"""Flower's private interface: what fedstill needs of it beyond its public packages, all in this folder.

Flower promises to keep `flwr.app`, `flwr.clientapp`, `flwr.serverapp` and `flwr.simulation`. What is used here may move
with a minor version; it is tried with flwr 1.41 and 1.42.
"""
