# %% [markdown]
# # Your own model
# Any `torch.nn.Module` will do. It is called with those of the arguments `shape`, `kind` and `classes` that it has, and
# returns logits.

# %%
import torch
from torch import nn

import fedstill as fs


class Net(nn.Module):
    """A small network for the pictures at hand."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(shape[0], 8, 3, stride=2), nn.ReLU(), nn.Flatten())
        width = self.body(torch.zeros(1, *shape)).shape[1]
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.head(self.body(x))


# %% [markdown]
# The class is the recipe: every client and the server build their own from it, from the run's seed.

# %%
small = {
    "data": "digits", "clients": 4, "active": 1.0, "alpha": 0.5, "rounds": 2, "workers": "inline", "progress": False,
}  # fmt: skip
result = fs.run(fs.FedAvg(lr=0.05, epochs=2), model=Net, out=None, **small)
print(result)

# %% [markdown]
# The methods that distil need the features that come before the last linear layer; they are found automatically, so
# FedKF runs with the same class.

# %%
print(fs.run(fs.FedKF(lr=0.05, epochs=1), model=Net, out=None, **{**small, "rounds": 1}))
