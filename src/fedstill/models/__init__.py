"""Named architectures: classifiers with features and logits, and image generators."""

from fedstill.models import cnn, lenet, mlp, resnet  # noqa: F401  # so that they are registered
from fedstill.models.build import Spec, build_model, initial
from fedstill.models.classifier import Classifier, Shape
from fedstill.models.cost import multiply_adds
from fedstill.models.generator import ImageGenerator, build_generator
from fedstill.models.registry import generators, models

__all__ = [
    "Classifier",
    "ImageGenerator",
    "Shape",
    "Spec",
    "build_generator",
    "build_model",
    "generators",
    "initial",
    "models",
    "multiply_adds",
]
