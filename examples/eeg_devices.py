"""
Two EEG devices, two frozen models
==================================

Replace a device without training the models again, although the people measured differ.

A hospital replaces EEG device V1 by V2. Two models were trained on V1 data: one finds seizures, one
finds depression. Nobody can train them again. The new amplifiers have another gain and baseline in
every channel, and the people differ too: V1 was worn mostly by healthy volunteers, V2 mostly by
patients with seizures.

The *query* is V2 (new), the *reference* is V1 (old). The data are simulated, so that we know what
V1 would have recorded of the V2 people.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import gaussian_kde
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from condokit import ConDoAdapter, datasets, evaluate

QUERY, REFERENCE, MAPPED, GREY = "#e07a1f", "#2a6fb0", "#2e8b57", "#888888"

eeg = datasets.make_eeg(random_state=0)
table = eeg.to_frame()
print(table.groupby("device")[["seizure", "depression"]].agg(["mean", "size"]).round(2))

# %%
# Two frozen models
# -----------------
# They saw V1 data alone, and stay as they are.

names = eeg.feature_names
new, old = table[table["device"] == "v2"], table[table["device"] == "v1"]


def train(label):
    """Return a model that was trained on the old device."""
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    return model.fit(old[names], old[label])


models = {label: train(label) for label in ("seizure", "depression")}

# %%
# Learn the map
# -------------
# Whether somebody has seizures differs between the two groups of people for reasons that are not
# technical. It is the *confounder*: what we want to keep. It is needed to learn the map only.

roles = {"domain": "device", "confounders": ["seizure"], "features": ["eeg_*"]}
adapter = ConDoAdapter(reference="v1").fit(table, **roles)
print(adapter.support_)

# %%
# For comparison, we also match mean and standard deviation of every channel without looking at who
# was measured. This is what :class:`condokit.ConDoAdapter` does without confounders.

matching = ConDoAdapter(shrinkage=None).fit_pair(new[names], old[names])

versions = {
    "as recorded by V2": new[names],
    "moment matching": matching.transform(new[names]),
    "condokit": adapter.transform(new),
    "V1 on the same people": new[names] * eeg.scale + eeg.offset,  # the truth
}

# %%
# One channel
# -----------
# Within each group of people, the mapped values of V2 (green) lie where V1 has them (blue). Moment
# matching (grey) makes the two devices alike in total, so that it moves both groups: it takes the
# larger share of patients for a fault of the device.

channel = "eeg_delta_P4"
curves = [
    ("V1", REFERENCE, old["seizure"], old[channel]),
    ("V2 as recorded", QUERY, new["seizure"], new[channel]),
    ("V2, moment matching", GREY, new["seizure"], versions["moment matching"][channel]),
    ("V2, condokit", MAPPED, new["seizure"], versions["condokit"][channel]),
]
fig, axes = plt.subplots(2, 1, figsize=(7, 5), sharex=True)
x = np.linspace(-2, 8, 300)
for ax, group, title in zip(axes, (False, True), ("without seizures", "with seizures")):
    for label, colour, seizure, values in curves:
        density = gaussian_kde(values[seizure == group])(x)
        if label == "V1":
            ax.fill_between(x, density, color=colour, alpha=0.3, linewidth=0, label=label)
        else:
            ax.plot(x, density, color=colour, linewidth=2, label=label)
    ax.set_ylim(0)
    ax.set_title(f"People {title}", loc="left", fontsize=11)
    ax.set_yticks([])
    ax.spines[["top", "right", "left"]].set_visible(False)
axes[1].set_xlabel(f"{channel} (log band power)")
axes[0].legend(frameon=False, loc="upper right")
fig.tight_layout()

# %%
# What the frozen models make of it
# ---------------------------------
# As recorded, the model of seizures happens to work and that of depression does not. Moment
# matching repairs the second and breaks the first: it has erased what seizures do. With the map,
# both models are as good as they would be on data of V1. The map knows nothing of depression.

accuracy = {
    name: [model.score(X, new[label]) for label, model in models.items()]
    for name, X in versions.items()
}
for name, values in accuracy.items():
    print(f"{name:24}", *(f"{label} {v:.1%}  " for label, v in zip(models, values)))

fig, ax = plt.subplots(figsize=(7, 3.2))
place = np.arange(len(models))
colours = (QUERY, GREY, MAPPED, REFERENCE)
for k, ((name, values), colour) in enumerate(zip(accuracy.items(), colours)):
    bars = ax.barh(place + 0.2 * k, values, 0.18, color=colour, label=name)
    ax.bar_label(bars, [f"{v:.0%}" for v in values], padding=3, fontsize=9)
ax.set_yticks(place + 0.3, models)
ax.invert_yaxis()
ax.set_xlim(0, 1.08)
ax.set_xlabel("accuracy on the people of the new device")
ax.spines[["top", "right"]].set_visible(False)
above = {"loc": "upper center", "bbox_to_anchor": (0.45, 1.22)}
ax.legend(frameon=False, ncols=4, fontsize=9, **above)
fig.tight_layout()

# %%
# Without the truth
# -----------------
# In real life nobody knows what V1 would have recorded. :func:`condokit.evaluate` says from the
# data alone how far values are off, and what frozen models say of each group before and after.

found = evaluate(adapter, table, **roles, models=models, labels={m: m for m in models})
print(found.sentence)
shown = ["model", "rows with", "reference", "query_before", "query_after", "query_truth"]
print(found.models.to_frame()[shown].round(2).to_string(index=False))

# %%
# ``query_before`` and ``query_after`` are mean predicted probabilities on V2 data as recorded and
# mapped, ``query_truth`` is the share that is true. As recorded, the model finds
# depression in 76% of the people instead of 40%; after the map in 42%.
#
# Where to go on: :doc:`/fields/models` is about maps in front of models in production,
# :doc:`/guide/trust` about the verdict.

# sphinx_gallery_thumbnail_number = 1
