"""Beyond one machine: a hub, sites that keep their data, and the same methods over Flower.

Everything that imports Flower stands in this room; `messages`, `setting` and `site` know nothing of it.
"""
