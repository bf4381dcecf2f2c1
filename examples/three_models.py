# %% [markdown]
# # From three trained models to one
# Three sites have trained on their own and will never train together. Their models alone are enough: a student learns
# from the three, on samples that a generator imagines. Networks may differ, classes and columns may not.

# %%
from pathlib import Path
from tempfile import mkdtemp

import fedstill as fs
from fedstill.experiment.distil import distil, fusion
from fedstill.experiment.export import write_model

room = Path(mkdtemp())
result = fs.run(
    fs.Local(lr=0.05, epochs=10), data="digits", clients=3, active=1.0, alpha=1.0, rounds=1, model="mlp",
    out=room, name="apart", workers="inline", progress=False,
)  # fmt: skip
print("each alone:", [round(a, 2) for a in result.per_client("personal")])

# %% [markdown]
# Each site exports its model: `fedstill export runs/apart a.safetensors --model 0`.

# %%
files = [room / f"{site}.safetensors" for site in "abc"]
for client, file in enumerate(files):
    write_model(room / "apart", file, str(client))

# %% [markdown]
# `fedstill distil a.safetensors b.safetensors c.safetensors --out one.safetensors` makes one of them. The new file is
# used like a run's folder: `fedstill predict one.safetensors digit.png`, or `fs.load_model`.

# %%
found = distil(files, room / "one.safetensors", fusion("co-boosting", {"epochs": 1}), seed=1)
print(f"agrees with the three on {found['agreement']:.0%} of the made samples")
print("their weights in the ensemble:", [round(share, 2) for share in found["shares"].values()])
