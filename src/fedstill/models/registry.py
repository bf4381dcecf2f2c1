"""The names of the architectures: classifiers and generators."""

from typing import Any

from fedstill.core.registry import Registry

models: Registry[Any] = Registry("model")
"""Entries are classes of `Classifier`, called with those of shape, kind and classes that they name."""

generators: Registry[Any] = Registry("generator")
"""Generators of images: called as `entry(kind, noise, channels)`, they give a `Generator`."""

generators_by_kind: Registry[Any] = Registry("generator of this kind of data")
"""What `light` means for other kinds of data, by the kind's name; called the same way."""
