# %% [markdown]
# # Personalisation on the digits in five minutes
#
# Twenty clients hold 1,797 small images of handwritten digits. They belong to four hidden groups:
# each group has its own frequencies of digits, its own camera angle, and its own idea of which
# digit is called what. One model cannot serve them all. How much does a personal one help?
#
# This notebook is a Python file: run it as it is, or open it with `jupytext --to ipynb
# digits_in_five_minutes.py`.

# %%
from tempfile import mkdtemp

import torch

import fedblocks
from fedblocks import federation_of

torch.set_num_threads(1)  # the nets are small
folder = mkdtemp()  # where the runs go
changes = ["rounds=20", "evaluation.every=20"]

# %% [markdown]
# ## Who holds what
#
# A configuration decides everything; `digits-pfedmb` is one that comes with the package. Before
# training, look at the data.

# %%
config = fedblocks.read_config("digits-pfedmb", changes)
data = federation_of(config)
for row in data.preview(4):
    print(row)
print("hidden groups:", data.tags["group"].tolist())

# %% [markdown]
# ## Four ways to live together
#
# *Local*: everyone alone. *FedAvg*: one model for all. *FedPer*: a shared body, a head of one's
# own. *pFedMB*: every layer has four branches on the server, and every client its own weights with
# which they are mixed.

# %%
runs = {
    name: fedblocks.run(fedblocks.read_config(f"digits-{name}", changes), out=f"{folder}/{name}")
    for name in ("local", "fedavg", "fedper", "pfedmb")
}

# %%
for row in fedblocks.leaderboard(runs, reference="local"):
    worse = f"{row['below_reference']:.0%} of clients worse off than alone"
    print(f"{row['name']:8} mean {row['mean']:.2f}  worst client {row['worst']:.2f}  {worse}")

# %% [markdown]
# One seed and twenty rounds are a first look and no result: [compare](../compare-and-report.md)
# repeats it with six seeds and gives intervals.
#
# ## Did it find the groups?
#
# Nobody told pFedMB about the groups. A client's weights are its own; here are those of the first
# layer, as shares.

# %%
state = runs["pfedmb"].state()
groups = data.tags["group"]
for client in sorted(state.private, key=lambda c: (groups[c], c)):
    weights = torch.softmax(state.private[client]["alpha"]["value"][0], -1)  # [branches]
    shares = "  ".join(f"{weight:.2f}" for weight in weights)
    print(f"group {groups[client]}  client {client:2}  {shares}")

# %% [markdown]
# ## What did it cost?
#
# Four branches travel instead of one layer. Bytes are counted for every round, client and block.

# %%
for name, run in runs.items():
    print(f"{name:8} {(run.bytes_down + run.bytes_up) / 1e6:6.1f} MB")

# %% [markdown]
# Next: [your own data](../tutorial/own-data.md), or the same as an HTML page with curves and maps:
# `fedblocks report FOLDER`.
