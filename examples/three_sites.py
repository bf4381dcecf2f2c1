# %% [markdown]
# # From the simulator to three sites
# The same experiment file runs here and on machines that keep their data. First here, on three files.

# %%
from pathlib import Path
from tempfile import mkdtemp

import numpy as np

import fedstill as fs
from fedstill.experiment.config import read

room = Path(mkdtemp())
digits = fs.load("digits").train
files = []
for k, site in enumerate("abc"):
    files.append(str(room / f"site-{site}.npz"))
    np.savez(files[-1], x_train=digits.x[k::3].numpy(), y_train=digits.y[k::3].numpy())

# %%
(room / "experiment.toml").write_text(f"""
data = {files}
active = 1.0
rounds = 2
workers = "inline"
[method]
name = "fedavg"
lr = 0.05
epochs = 2
""")
plan = read(room / "experiment.toml")
result = fs.run(**plan, out=room / "runs", name="here", progress=False)
print(result)

# %% [markdown]
# Then on sites: the hub's keeper runs `fedstill hub`, each site `fedstill site`, and `fedstill deploy experiment.toml`
# starts it; the bits are the same. The page *Across real sites* has every command. Before a site takes part, it can
# see what would leave it:

# %%
for name in ("fedavg", "fedkf", "fedtkd"):
    print(name, "→", fs.methods[name].leaves_client())
