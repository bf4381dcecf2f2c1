"""Knowledge by class: means, lengths, and the nearest prototype as a linear layer."""

import torch
from smallest import small_experiment
from torch import nn, tensor

from fedstill.core.shelf import Storage
from fedstill.experiment.stage import stage
from fedstill.methods import FedProto
from fedstill.parts.class_knowledge import (
    GlobalPrototypes,
    by_class,
    common_width,
    nearest_prototype,
    prototype_gap,
    shortened,
)


def test_weights_count_by_class() -> None:
    """Class 0: 1·(2) + 3·(6) over 4 = 5. Class 1: only the second client, whatever the first says."""
    told = [tensor([[2.0], [99.0]]), tensor([[6.0], [7.0]])]
    means, known = by_class(torch.zeros(2, 1), torch.zeros(2).bool(), told, [tensor([1, 0]), tensor([3, 5])])
    assert means.tolist() == [[5.0], [7.0]]
    assert known.tolist() == [True, True]


def test_the_gap_by_hand() -> None:
    """Features (1, 3), prototype (0, 0): (1 + 9)/2 = 5. Second sample: its class is not known, 0. Mean 2.5."""
    means, known = torch.zeros(2, 2), tensor([True, False])
    assert prototype_gap(tensor([[1.0, 3.0], [8.0, 8.0]]), tensor([0, 1]), means, known).item() == 2.5


def test_vectors_are_compared_at_the_shortest_length() -> None:
    """(1, 3, 5, 7) in two: neighbours' means 2 and 6. Networks of 64 and 120 features: 64."""
    assert shortened(tensor([[1.0, 3.0, 5.0, 7.0]]), 2).tolist() == [[2.0, 6.0]]
    ready = stage(small_experiment(FedProto(), models="mlp,lenet5"), Storage())
    assert common_width(ready.env) == 64


class Net(nn.Module):
    """As much of a network as has a head."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head


def test_a_linear_layer_says_which_prototype_is_nearest() -> None:
    """Prototypes (0, 0), (4, 0), (0, 9), the last unknown. (1, 8) is nearest to the unknown one, then to (0, 0)."""
    prototypes = GlobalPrototypes(tensor([[0.0, 0.0], [4.0, 0.0], [0.0, 9.0]]), tensor([True, True, False]))
    net = Net(nn.Linear(2, 3))
    assert nearest_prototype(net, prototypes) is not None
    points = tensor([[1.0, 8.0], [3.0, 1.0], [2.1, 0.0], [1.9, 0.0]])
    assert net.head(points).argmax(-1).tolist() == [0, 1, 1, 0]


def test_shortened_vectors_are_compared_as_they_are_shortened() -> None:
    """Length 4 to 2: (1, 1, 9, 9) and (9, 9, 1, 1) become (1, 9) and (9, 1), the two prototypes."""
    prototypes = GlobalPrototypes(tensor([[1.0, 9.0], [9.0, 1.0]]), tensor([True, True]))
    net = Net(nn.Linear(4, 2))
    nearest_prototype(net, prototypes)
    assert net.head(tensor([[1.0, 1.0, 9.0, 9.0], [9.0, 9.0, 1.0, 1.0]])).argmax(-1).tolist() == [0, 1]
    assert nearest_prototype(Net(nn.Sequential(nn.Linear(4, 2))), prototypes) is None
