"""Named architectures: classifiers with features and logits, and generators, by kind of data."""

from fedstill.core.classifier import Classifier
from fedstill.models import (  # noqa: F401  # so that they are registered
    cnn,
    generator_others,
    lenet,
    mlp,
    resnet,
    sequence,
    tabular,
    text,
)
from fedstill.models.build import Spec, auto, build_model, initial
from fedstill.models.classifier import Shape
from fedstill.models.cost import multiply_adds
from fedstill.models.generator import Generator, ImageGenerator, build_generator
from fedstill.models.registry import generators, models

__all__ = [
    "Classifier",
    "Generator",
    "ImageGenerator",
    "Shape",
    "Spec",
    "auto",
    "build_generator",
    "build_model",
    "generators",
    "initial",
    "models",
    "multiply_adds",
]
