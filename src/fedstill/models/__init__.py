"""Named architectures: classifiers with features and logits, and image generators."""

from fedstill.models import cnn, lenet, mlp, resnet
from fedstill.models.classifier import Classifier, Network, Shape
from fedstill.models.cost import multiply_adds
from fedstill.models.generator import ImageGenerator, build_generator
from fedstill.models.registry import generators, models
from fedstill.models.weights import he_normal, seeded
