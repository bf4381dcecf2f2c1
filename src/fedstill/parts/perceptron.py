"""The gradient of a perceptron's cross-entropy, layer by layer: by the kernels that autograd calls and to its bits.

Of a small perceptron's step most is autograd's own work: a graph is made, locked, walked and freed for every batch.
Fully connected layers with ReLU between them need none of it, nor do LeNet-5's convolutions before them where they are
computed as matrix products (`models.pooled`).
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from fedstill.core.classifier import Classifier, watched
from fedstill.models.lenet import LeNet5Gemm
from fedstill.models.pooled import Products, applies, in_images, in_rows

_nll_backward = torch.ops.aten.nll_loss_backward.default
_relu_backward = torch.ops.aten.threshold_backward.default
MEAN, IGNORED = 1, -100
"""How torch numbers the mean over a batch, and the label that would not count."""


class Perceptron:
    """Fully connected layers, each with or without ReLU after it, and nothing else but a first flattening.

    Args:
        flat: are inputs flattened first?
        layers: every fully connected layer, and whether ReLU follows it.
        front: convolutions before them, each with its pooling and ReLU as matrix products; only the first is padded.
    """

    def __init__(self, flat: bool, layers: Sequence[tuple[nn.Linear, bool]], front: Sequence[nn.Conv2d] = ()) -> None:
        self.flat = flat
        self.padding = int(front[0].padding[0]) if front else 0
        self.front = [(a.weight.detach(), a.bias.detach()) for a in front if a.bias is not None]
        # the parameters' own memory, which no graph watches
        self.layers = [(a.weight.detach(), None if a.bias is None else a.bias.detach(), relu) for a, relu in layers]
        self.one = torch.ones_like(self.layers[0][0][0, 0])

    @staticmethod
    def of(module: nn.Module, trained: Sequence[Tensor]) -> "Perceptron | None":
        """The module as a perceptron whose parameters are `trained`, all of them, in this order; None: it is none."""
        if not isinstance(module, Classifier) or watched(module):
            return None
        chain = list(_unpacked(module.chain()))
        front: list[nn.Conv2d] = []
        if isinstance(module, LeNet5Gemm):
            if not applies(trained[0], module.body):
                return None
            while type(chain[0]) is nn.Conv2d:
                front.append(chain[0])
                del chain[:3]  # its pooling and ReLU, too
        flat = bool(chain) and type(chain[0]) is nn.Flatten and (chain[0].start_dim, chain[0].end_dim) == (1, -1)
        layers: list[tuple[nn.Linear, bool]] = []
        for layer in chain[flat:]:
            if type(layer) is nn.Linear:
                layers.append((layer, False))
            elif type(layer) is nn.ReLU and layers:
                layers[-1] = (layers[-1][0], True)
            else:
                return None
        if any(layer.in_features == 1 for layer, _ in layers):  # of one sample with one number autograd sums otherwise
            return None
        own = [parameter for layer in (*front, *(a for a, _ in layers)) for parameter in layer.parameters()]
        same = len(own) == len(trained) and all(a is b and a.requires_grad for a, b in zip(own, trained, strict=True))
        return Perceptron(flat, layers, front) if layers and same else None

    def gradients(self, x: Tensor, labels: Tensor) -> list[Tensor]:
        """Of the mean cross-entropy of a batch, for each parameter."""
        given: list[Tensor] = []
        passed: list[Products] = []
        if self.front:
            rows = in_rows(x, self.padding)
            for kernel, shift in self.front:
                passed.append(Products(rows, kernel, shift, returns=True))
                rows = passed[-1].out
            x = in_images(rows)
        shape = x.shape
        x = x.flatten(1) if self.flat else x
        for weight, bias, relu in self.layers:
            given.append(x)
            x = nn.functional.linear(x, weight, bias)
            x = torch.relu_(x) if relu else x
        chances = torch.log_softmax(x, 1)
        count = torch.full_like(self.one, len(labels))
        back = _nll_backward(self.one, chances, labels, None, MEAN, IGNORED, count)
        back = torch._log_softmax_backward_data(back, chances, 1, x.dtype)
        found: list[Tensor] = []
        for place in reversed(range(len(self.layers))):
            weight, bias, relu = self.layers[place]
            if relu:
                back = _relu_backward(back, x, 0)
            x = given[place]
            if bias is not None:
                found.append(back.sum(0))
            found.append(back.t().mm(x))
            if place or passed:
                back = back.mm(weight)
        slope: Tensor | None = back.view(shape).permute(2, 1, 3, 0) if passed else None
        for layer in reversed(passed):
            assert slope is not None
            slope, *ours = layer.slopes(slope, (layer is not passed[0], True, True))
            found += [number for number in reversed(ours) if number is not None]
        return found[::-1]


def _unpacked(chain: Sequence[nn.Module]) -> Iterator[nn.Module]:
    """Single layers, in the order in which inputs pass them."""
    for part in chain:
        if type(part) is nn.Sequential:
            yield from _unpacked(list(part))
        else:
            yield part
