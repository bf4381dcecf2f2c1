# %% [markdown]
# # Your own method, in one file
# A method is a frozen dataclass: its fields are its settings, its functions are the algorithm box. This one is FedAvg
# whose clients soften their labels; what weight-averaging methods share comes from `Averaging`.

# %%
from dataclasses import dataclass
from typing import Any

from torch.nn.functional import cross_entropy

import fedstill as fs
from fedstill.core.method import methods
from fedstill.data.samples import Samples
from fedstill.parts.averaging import Averaging, Broadcast
from fedstill.parts.gather import Update


@methods.register("fedsoft-labels")
@dataclass(frozen=True)
class SoftLabels(Averaging):
    """FedAvg on labels of which every class gets a little."""

    smoothing: float = fs.setting(0.1, ge=0, lt=1, doc="the share of a label that all classes divide among them")

    def client(self, env: fs.Env, state: Any, down: Broadcast, data: Samples) -> tuple[Any, Update]:
        """E epochs of SGD from w; only the returned `Update` leaves the client."""
        learner = self.learner(env, env.module(down.weights))
        for x, y in self.batches(env, data, learner.module):
            learner.step(cross_entropy(learner(x), y, label_smoothing=self.smoothing))
        return self.gather.outgoing(env, state, learner.weights)


# %% [markdown]
# It now runs like any other: by name, with its settings checked, and the ledger knows what it sends.

# %%
print("leaves a client:", SoftLabels.leaves_client())
small = {
    "data": "digits", "clients": 4, "active": 1.0, "alpha": 0.5, "rounds": 2, "workers": "inline", "progress": False,
}  # fmt: skip
print(fs.run(SoftLabels(smoothing=0.2, lr=0.05, epochs=2), out=None, **small))

# %%
try:
    SoftLabels(smoothing=1.5)
except fs.FedstillError as error:
    print(error)
