"""
Three hospitals that cannot share rows
======================================

Each site sends sums instead of patients. The maps are nearly those of a fit to all rows together.

Hospital A has a risk score that was developed with its own blood analyser. Hospitals B and C want
to use the score, but their analysers measure differently, their patients differ, and no row may
leave a hospital. Each site gathers :class:`condokit.Statistics` (counts, means and spreads by
cell), looks at what the file reveals, and sends it. A *cell* is a site with one level of every
confounder.

The data are simulated, so that all rows can be put together here for comparison.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from condokit import BatchAdapter, Statistics

ANALYTES = ["haemoglobin", "albumin", "sodium", "potassium"]
TYPICAL = np.array([138.0, 38.0, 139.0, 4.2])  # g/L, g/L, mmol/L, mmol/L
SPREAD = np.array([12.0, 3.5, 2.6, 0.4])
rng = np.random.default_rng(0)


def patients(site, n, women, emergency, scale, offset):
    """Return the patients of a hospital as its analyser measures them, and as A would."""
    sex = np.where(rng.random(n) < women, "F", "M")
    ward = np.where(rng.random(n) < emergency, "emergency", "surgery")
    X = TYPICAL + SPREAD * rng.normal(size=(n, 4))
    X += np.outer(sex == "F", [-13, -0.5, 0, -0.1])
    X += np.outer(ward == "emergency", [-9, -4, -1.5, 0.15])
    facts = pd.DataFrame({"site": site, "sex": sex, "ward": ward})
    seen = pd.DataFrame(X * scale + SPREAD * offset, columns=ANALYTES)
    return facts.join(seen), X


made = {
    "A": patients("A", 1500, 0.55, 0.15, 1.0, 0.0),
    "B": patients("B", 900, 0.45, 0.5, np.array([1.06, 0.94, 1, 1.1]), [-0.5, 0.4, 0.8, -1]),
    "C": patients("C", 700, 0.4, 0.7, np.array([0.96, 1.05, 1, 1]), [0.4, 0.2, -0.5, 0.3]),
}
tables = {site: table for site, (table, _) in made.items()}
truth = {site: X for site, (_, X) in made.items()}

# %%
# At every hospital
# -----------------
# The same lines run at each site, on its own rows. ``min_cell`` is the fewest rows of a cell of
# which anything is written.

folder = Path(tempfile.mkdtemp())
for site, table in tables.items():
    here = Statistics.of(table, label=site, confounders=["sex", "ward"], features=ANALYTES)
    here.save(folder / f"{site}.json", min_cell=10)

# %%
# What is in a file
# -----------------
# It is text that can be read before it is sent: four cells, each with the number of patients, and
# the mean and the sum of squared deviations of each analyte; and for all cells together classes of
# skewness and kurtosis, and a correlation. On the command line, ``condokit show A.json`` says it
# in plain words.

content = (folder / "A.json").read_text()
print(f"{len(content):,} bytes for {len(tables['A']):,} patients")
for line in content.splitlines():
    if '"levels"' in line:
        print(line.strip()[:150], "...")

# %%
# At the coordinating centre
# --------------------------
# Whoever has the files learns a map to A for each of the others.

files = [Statistics.load(folder / f"{site}.json") for site in tables]
study = BatchAdapter(reference="A").fit_statistics(files)
print(study.report_)

# %%
# Nearly the same as with all rows
# --------------------------------
# Here we may do what the hospitals may not, and put all rows together.

everything = pd.concat(tables.values(), ignore_index=True)
pooled = BatchAdapter(reference="A").fit(
    everything, batch="site", confounders=["sex", "ward"], features=ANALYTES
)
for site in "BC":
    difference = abs(study.maps_[site].scale - pooled.maps_[site].scale).max()
    print(f"{site}: scales differ by at most {difference:.0e}")

# %%
# Are they right?
# ---------------
# Each hospital maps its own patients, with its own map, which needs analytes alone. The error is
# the difference from what analyser A would have measured of the same patients, in standard
# deviations.

own = tables["A"][ANALYTES]
errors = {}
for site in "BC":
    X = tables[site][ANALYTES]
    versions = {
        "as measured": X,
        "matching means and spreads": (X - X.mean()) / X.std() * own.std() + own.mean(),
        "condokit, from three files": study.maps_[site](X),
        "condokit, all rows together": pooled.maps_[site](X),
    }
    for name, mapped in versions.items():
        error = np.sqrt(((mapped - truth[site]) ** 2).mean(axis=0)) / SPREAD
        errors.setdefault(name, []).append(error.to_numpy())

fig, axes = plt.subplots(1, 2, figsize=(8, 3.6), sharey=True)
colours = ("#e07a1f", "#888888", "#2e8b57", "#2a6fb0")
for k, (ax, site) in enumerate(zip(axes, "BC")):
    for shift, ((name, found), colour) in enumerate(zip(errors.items(), colours)):
        ax.bar(np.arange(4) + 0.2 * shift, found[k], 0.18, color=colour, label=name)
    ax.set_xticks(np.arange(4) + 0.3, ANALYTES, fontsize=9)
    ax.set_title(f"Hospital {site}", loc="left", fontsize=11)
    ax.spines[["top", "right"]].set_visible(False)
axes[0].set_ylabel("error (sd)")
fig.legend(*axes[0].get_legend_handles_labels(), frameon=False, loc="lower center", ncols=2)
fig.tight_layout(rect=(0, 0.14, 1, 1))

# %%
# What does not work without rows
# -------------------------------
# Evaluation, reports, matrices and curves need rows. Each site can do them with rows of its own:
# for example check its incoming rows with ``study.maps_["B"].check(new_rows)``. Features with
# heavy tails are fitted as if they were normal, with a warning, until a second round of files;
# continuous confounders such as age need a declared range. :doc:`/fields/hospitals` shows both, on
# the command line.
