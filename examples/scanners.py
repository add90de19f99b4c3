"""
Two scanners, patients and controls
===================================

Cortical thickness of an old and a new scanner is made comparable, and age and disease stay in it.

A hospital replaced its scanner. The old one saw mostly controls, the new one mostly patients, who
are older as well. The data are simulated: we know what the old scanner would have shown of all.
"""

# %%
# The data
# --------
# Eight regions get thinner with age and with the disease. The new scanner stretches and shifts
# each of them. "Query" are the rows of the new scanner, "reference" those of the old one.

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from condokit import ConDoAdapter, evaluate

rng = np.random.default_rng(3)
regions = ["entorhinal", "precuneus", "inferiorparietal", "middletemporal"]
regions += ["superiortemporal", "insula", "precentral", "superiorfrontal"]
disease = np.array([-0.30, -0.12, -0.10, -0.11, -0.07, -0.06, -0.02, -0.04])  # mm
mean = np.array([3.40, 2.40, 2.45, 2.85, 2.77, 3.00, 2.55, 2.72])
spread = np.array([0.28, 0.11, 0.11, 0.12, 0.12, 0.13, 0.11, 0.11])

n = 240
scanner = np.repeat(["old", "new"], n // 2)
patient = rng.random(n) < np.where(scanner == "old", 0.25, 0.65)
age = np.clip(rng.normal(np.where(scanner == "old", 64, 71), 7), 50, 88)
truth = mean + disease * patient[:, None] - 0.007 * (age - 65)[:, None]
truth = truth + spread * rng.normal(size=(n, 8))

scale, shift = np.exp(rng.normal(0.05, 0.08, 8)), rng.normal(0.6, 0.5, 8) * spread
changed = mean + scale * (truth - mean) + shift
scans = pd.DataFrame(np.where(scanner[:, None] == "new", changed, truth), columns=regions)
scans = scans.assign(scanner=scanner, age=age, diagnosis=np.where(patient, "patient", "control"))
print(scans.groupby("scanner").agg(n=("age", "size"), age=("age", "mean")).round(1))
print(pd.crosstab(scans["scanner"], scans["diagnosis"]))

# %%
# Two corrections
# ---------------
# **Moment matching** gives every region the mean and the standard deviation that it has on the old
# scanner. It knows nothing of age and disease: without confounders and shrinkage, this is what
# ``ConDoAdapter`` does too.
#
# **condokit** compares people of equal age and diagnosis. A confounder is what you want to keep.

roles = {"domain": "scanner", "features": regions}
plain = ConDoAdapter(reference="old", shrinkage=None).fit(scans, **roles)
roles["confounders"] = ["age", "diagnosis"]
adapter = ConDoAdapter(reference="old").fit(scans, **roles)
tables = {
    "as recorded": scans[regions],
    "moment matching": plain.transform(scans, domain="scanner"),
    "condokit": adapter.transform(scans, domain="scanner"),
}
print(evaluate(adapter, scans, **roles).sentence)

# %%
# Because the data are simulated, we can also ask how far values are from the truth.

new = scanner == "new"
for name, table in tables.items():
    error = np.sqrt((((table - truth) / spread)[new] ** 2).to_numpy().mean())
    print(f"{name:<16} off by {error:.2f} sd")

# %%
# Thickness by age
# ----------------
# Lines are fitted to the patients and the controls of each scanner. We show the middle temporal
# region because the problem is easy to see there; the next figure has all eight. The shift of the
# scanner and the older, sicker people nearly cancel, so the means of the two scanners are about
# equal. Moment matching corrects little, so the gap between equal people stays; condokit closes it.

colours = {"old": "#2a6fb0", "new": "#e07a1f"}
fig, axes = plt.subplots(1, 3, figsize=(11, 3.8), sharey=True)
for ax, (name, table) in zip(axes, tables.items()):
    for which in ("old", "new"):
        colour = "#2e8b57" if name == "condokit" and which == "new" else colours[which]
        for group, marker, line in (("control", "o", "-"), ("patient", "x", "--")):
            rows = (scanner == which) & (scans["diagnosis"] == group)
            y, x = table.loc[rows, "middletemporal"], age[rows]
            ax.plot(x, y, marker, color=colour, ms=4, alpha=0.25)
            ends = np.array([x.min(), x.max()])
            label = f"{which} scanner, {group}s"
            ax.plot(
                ends, np.polyval(np.polyfit(x, y, 1), ends), line, color=colour, lw=2.2, label=label
            )
    ax.set(title=name, xlabel="age (years)")
axes[0].set_ylabel("middle temporal thickness (mm)")
axes[0].legend(fontsize=7.5, frameon=False, loc="lower left")
axes[2].legend(fontsize=7.5, frameon=False, loc="lower left")
fig.tight_layout()

# %%
# Is the effect of the disease kept?
# ----------------------------------
# The difference between patients and controls of all scans together, adjusted for age, in mm. Black
# ticks are what the old scanner would have shown of the same people.


def effect(table):
    """Return the effect of the disease on every region."""
    design = np.column_stack([np.ones(n), age, patient])
    return np.linalg.lstsq(design, np.asarray(table), rcond=None)[0][2]


fig, ax = plt.subplots(figsize=(8, 3.8))
place = np.arange(len(regions))
shades = {"as recorded": "#e07a1f", "moment matching": "#9a9a9a", "condokit": "#2e8b57"}
for k, (name, table) in enumerate(tables.items()):
    ax.bar(place + 0.26 * (k - 1), effect(table), 0.24, color=shades[name], label=name)
wanted = effect(truth)
ax.hlines(wanted, place - 0.4, place + 0.4, color="black", lw=1.5, label="truth")
ax.axhline(0, color="black", lw=0.6)
ax.set_xticks(place, regions, rotation=30, ha="right")
ax.set_ylabel("patients minus controls (mm)")
ax.legend(frameon=False, ncols=2)
fig.tight_layout()

for name, table in tables.items():
    wrong = np.sqrt(np.mean((effect(table) - wanted) ** 2))
    print(f"{name:<16} effects wrong by {1000 * wrong:.0f} µm")

# %%
# The map is frozen and small: later scans need no age and no diagnosis.

print(adapter.map_)

# %%
# With more than two scanners use :class:`condokit.BatchAdapter`; see the page on imaging.
#
# sphinx_gallery_thumbnail_number = 1
