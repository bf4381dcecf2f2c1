"""Beyond one machine: a hub, sites that keep their data, and the same methods over Flower.

Only `transports/flower.py`, `deploy/apps.py`, `deploy/node.py`, `deploy/hub.py`, `deploy/keys.py` and
`deploy/control.py` import Flower; letters, settings and the site's worker know nothing of it.
"""
