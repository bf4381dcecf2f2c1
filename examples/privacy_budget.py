# %% [markdown]
# # A privacy budget
# With `private-samples` every step on a client's own samples is clipped and noisy (DP-SGD), and the client counts
# what it has spent: it stops before it is more than ε. Needs `pip install 'fedstill[privacy]'`.

# %%
import fedstill as fs

plan = {
    "data": "digits", "clients": 3, "active": 1.0, "partition": "iid", "rounds": 2,
    "out": None, "workers": "inline", "progress": False,
}  # fmt: skip
method = fs.FedAvg(lr=0.5, epochs=2)
open_run = fs.run(method, **plan)

# %% [markdown]
# By command: `fedstill run fedavg --private epsilon=8,delta=1e-5`. The smaller ε, the more noise.

# %%
for epsilon in (2, 20):
    private = fs.run(method, wrappers=[{"name": "private-samples", "epsilon": epsilon, "delta": 1e-5}], **plan)
    print(f"ε = {epsilon}: accuracy {private.last('overall')['accuracy']:.3f}")
print(f"no privacy: accuracy {open_run.last('overall')['accuracy']:.3f}")
