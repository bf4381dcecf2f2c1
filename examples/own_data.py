# %% [markdown]
# # Your own data
# Any arrays can be used for training. Here three clients hold small pictures; each has its own, and no two clients
# have the classes in the same shares.

# %%
import numpy as np
from sklearn.datasets import load_digits

import fedstill as fs

x, y = load_digits(return_X_y=True)
x = (x.reshape(-1, 8, 8) * 15).astype(np.uint8)

# %% [markdown]
# A list with each client's `(x, y)` is the shortest form: client 0 has the small digits, client 1 the middle, client 2
# the large ones. Every client keeps a fifth of its samples as its own test.

# %%
shares = [y < 4, (y >= 3) & (y < 8), y >= 6]
data = [(x[mine], y[mine]) for mine in shares]
result = fs.run(
    fs.FedAvg(lr=0.05, epochs=2), data=data, active=1.0, rounds=3, out=None, workers="inline", progress=False
)

# %% [markdown]
# AMP is the mean over clients, WLP the client served worst, FM the variance (smaller is fairer).

# %%
for model in result.models:
    print(model, {name: round(result.last(model)[name], 3) for name in ("amp", "wlp", "fm")})
print("worst served:", result.worst("overall"))

# %% [markdown]
# One data set for all works too: samples are then divided among `clients`; the smaller `alpha`, the more they differ.

# %%
divided = fs.run(
    "fedavg", data=(x, y), clients=5, alpha=0.5, active=1.0, rounds=1, out=None, workers="inline", progress=False
)
print(divided)
