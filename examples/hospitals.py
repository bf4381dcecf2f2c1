# %% [markdown]
# # Hospitals with a table
# One row for each patient, a column that names the hospital, and a column to predict. Each hospital becomes a client.

# %%
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
from sklearn.datasets import load_breast_cancer

import fedstill as fs

source = load_breast_cancer(as_frame=True)
table = source.data.iloc[:, :8].copy()
table["outcome"] = np.where(source.target == 1, "benign", "malignant")
table["hospital"] = np.where(table["mean radius"] > 15, "Basel", np.where(table["mean texture"] > 19, "Bern", "Zurich"))
table.loc[::17, "mean area"] = None  # some cells are empty, as they always are
room = Path(mkdtemp())
table.to_csv(room / "patients.csv", index=False)

# %% [markdown]
# The same by command: `fedstill run fedavg --data patients.csv --label outcome --site hospital`.

# %%
result = fs.run(
    fs.FedAvg(lr=0.05, epochs=2), data=str(room / "patients.csv"), label="outcome", site="hospital",
    rounds=4, out=room / "runs", name="first", workers="inline", progress=False,
)  # fmt: skip
print(result)

# %% [markdown]
# How each hospital is served, and what left it:

# %%
for hospital, accuracy in zip(sorted(table["hospital"].unique()), result.per_client("overall"), strict=True):
    print(f"{hospital:8} {accuracy:.3f}")
print(result.bytes_by_field()["up"])

# %% [markdown]
# The model is in the run's folder and takes rows as they were. In scikit-learn's words the same is
# `fs.FederatedClassifier("fedavg").fit(X, y, sites=hospital)`.
#
# `fedstill run local …` with the same words trains every hospital alone. `fedstill report runs -o report.html` opens
# with what each hospital gained, what left it, and, after `--private epsilon=8,delta=1e-5`, what that cost in privacy.

# %%
columns = [name for name in table.columns if name not in ("outcome", "hospital")]
classifier = fs.FederatedClassifier(fs.FedAvg(lr=0.05, epochs=2), rounds=4, workers="inline")
classifier.fit(table[columns].fillna(0), table["outcome"], sites=table["hospital"])
print(f"{classifier.score(table[columns].fillna(0), table['outcome']):.3f}")
