# %% [markdown]
# # Different networks, and clients that lie
# With FedTKD clients exchange logits on a public set only, so each may have its own network. Some clients lie; the
# server finds them by their answers.

# %%
import fedstill as fs

plan = {
    "data": "digits", "clients": 5, "active": 1.0, "partition": "iid", "rounds": 2, "public": 0.2,
    "models": ("mlp", "mlp", "lenet5"), "out": None, "workers": "inline", "progress": False,
}  # fmt: skip
method = fs.FedTKD(lr=0.05, epochs=5)

# %% [markdown]
# Without liars, and with two of five who learned from wrong labels:

# %%
honest = fs.run(method, **plan)
attacked = fs.run(method, attack="label-flip", malicious=(1, 3), **plan)

# %%
for name, result in (("honest", honest), ("attacked", attacked)):
    print(f"{name}: each client's own model, mean accuracy {result.last('personal')['amp']:.3f}")
for row in attacked.rows:
    found = row["identification"]
    print(f"round {row['round']}: precision {found['precision']}, recall {found['recall']}")
print("what leaves a client:", fs.FedTKD.leaves_client())
