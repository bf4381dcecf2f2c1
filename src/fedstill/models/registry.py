"""The names of the architectures: classifiers and image generators."""

from typing import Any

from fedstill.core.registry import Registry

models: Registry[Any] = Registry("model")
"""Entries are called as `entry(shape, classes)` and give a `Classifier`."""

generators: Registry[Any] = Registry("generator")
"""Entries are called as `entry(shape, noise, mean, std, channels)` and give an `ImageGenerator`."""
