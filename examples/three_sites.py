# %% [markdown]
# # From the simulator to three sites
# The same experiment file runs here and on machines that keep their data. First here, on three files.

# %%
import socket
import subprocess
import sys
import time
from pathlib import Path
from tempfile import mkdtemp

import numpy as np

import fedstill as fs
from fedstill.experiment.config import read

room = Path(mkdtemp())
digits = fs.load("digits").train
for k, site in enumerate("abc"):
    np.savez(room / f"site-{site}.npz", x_train=digits.x[k::3].numpy(), y_train=digits.y[k::3].numpy())
files = [str(room / f"site-{site}.npz") for site in "abc"]
method = '{ name = "fedavg", lr = 0.05, epochs = 2 }'
(room / "experiment.toml").write_text(f"data = {files}\nactive = 1.0\nrounds = 2\nmethod = {method}\n")
here = fs.run(**read(room / "experiment.toml"), out=room / "runs", name="here", progress=False)
print(here)

# %% [markdown]
# Then for real: a hub and three sites, which could be on four machines. Certificates for the hub, a key for each site.

# %%
fedstill = [sys.executable, "-m", "fedstill"]  # in a terminal: fedstill
with socket.create_server(("127.0.0.1", 0)) as free:
    address = f"127.0.0.1:{free.getsockname()[1]}"
for words in (["--hub", "127.0.0.1", "--out", "."], ["site-a"], ["site-b"], ["site-c"]):
    subprocess.run([*fedstill, "keys", *words], cwd=room, check=True)
allow = [word for site in "abc" for word in ("--allow", f"site-{site}.pub")]
certs = ["--cert", "server.pem", "--key", "server.key", "--ca", "ca.crt"]
hub = [*fedstill, "hub", "--host", "127.0.0.1", "--port", address.split(":")[1], "--state", "hub", *certs, *allow]
started = [subprocess.Popen(hub, cwd=room)]
while not (room / "hub" / "token").exists() and started[0].poll() is None:
    time.sleep(0.2)
to_hub = ["--hub", address, "--ca", "ca.crt"]
for site in "abc":
    own = ["--key", f"site-{site}", "--data", f"site-{site}.npz", "--state", f"state-{site}"]
    started.append(subprocess.Popen([*fedstill, "site", *to_hub, *own], cwd=room))

# %% [markdown]
# `deploy` starts the run, follows it, and brings its folder home. The numbers are those of the simulator, bit for bit.

# %%
try:
    deploy = ["deploy", "experiment.toml", *to_hub, "--token", "hub/token", "--wait", "600", "--name", "there"]
    subprocess.run([*fedstill, *deploy, "--json"], cwd=room, check=True, stdout=subprocess.DEVNULL)
finally:
    for process in reversed(started):
        process.terminate()
        process.wait()
one, other = (fs.load_model(room / "runs" / name).state_dict() for name in ("here", "there"))
assert all((one[name] == other[name]).all() for name in one)
