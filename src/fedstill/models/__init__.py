"""Named architectures: classifiers with features and logits, and generators, by kind of data."""

from fedstill.core.classifier import Classifier as Classifier
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
from fedstill.models.build import Spec as Spec
from fedstill.models.build import auto as auto
from fedstill.models.build import build_model as build_model
from fedstill.models.build import initial as initial
from fedstill.models.classifier import Shape as Shape
from fedstill.models.generator import Generator as Generator
from fedstill.models.generator import ImageGenerator as ImageGenerator
from fedstill.models.generator import build_generator as build_generator
from fedstill.models.registry import generators as generators
from fedstill.models.registry import models as models
