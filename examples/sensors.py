# %% [markdown]
# # Sensors worn by people
# Measurements over time are arrays N×C×T. Each person moves in their own way, so each person is a client.

# %%
import numpy as np

import fedstill as fs

draw = np.random.default_rng(1)
people, windows, steps = 6, 40, 32
time = np.linspace(0, 1, steps)
series, activity, person = [], [], []
for subject in range(people):
    pace, strength = draw.uniform(0.8, 1.2), draw.uniform(0.5, 1.5)
    for window in range(windows):
        kind = window % 3  # still, walking, running
        wave = strength * np.sin(2 * np.pi * (1 + 3 * kind) * pace * time + draw.uniform(0, 6)) * (kind > 0)
        series.append(np.stack([wave, np.roll(wave, 4), 0.5 * wave]) + draw.normal(0, 0.2, (3, steps)))
        activity.append(kind)
        person.append(f"subject {subject}")

# %% [markdown]
# `site` says which person a window is from; `classes` and `names` are shown in the report.

# %%
data = {
    "x": np.float32(series), "y": np.array(activity), "site": np.array(person),
    "classes": ["still", "walking", "running"], "names": ["ax", "ay", "az"],
}  # fmt: skip
result = fs.run(fs.FedAvg(lr=0.05, epochs=5, batch=8), data=data, rounds=3, out=None, workers="inline", progress=False)
print(result)
print("person by person:", [None if a is None else round(a, 2) for a in result.per_client("overall")])
