"""
A divergence of your own in 30 lines
====================================

Write a divergence that does not mind outliers, check its gradient, and use it in an adapter.

A divergence is what a map makes small. The built-in ones are named by strings ("likelihood",
"reverse-kl", "mmd" and others). One of your own is a small class: it compares the rows of the two
domains within each stratum, and tells the slope of what it found. Everything else (strata, weights,
units, the search, standard errors by resampling, reports) works with it as it does with the others.
"""

# %%
# The idea: compare quantiles, but not the outermost ones
# -------------------------------------------------------
# Means and standard deviations follow single wild values. Quantiles between 10% and 90% do not.
# So we let the map make the squared differences of those quantiles small:
#
# .. math:: \frac{1}{L} \sum_l |Q_l(\text{mapped query}) - Q_l(\text{reference})|^2
#
# `SampleDivergence` asks for one method, ``distances``. It is told the rows of both domains in
# every stratum once, and returns a function of a stratum's number and its mapped query rows: the
# value, and the gradient in every mapped value. A quantile lies between two sorted rows, so only
# these two get a share of its gradient. Rows come in units of the reference's spread.

import warnings

import matplotlib.pyplot as plt
import numpy as np

from condokit import ConDoAdapter
from condokit.divergences import SampleDivergence
from condokit.summaries.samples import Samples

LEVELS = np.linspace(0.1, 0.9, 17)


class InnerQuantiles(SampleDivergence):
    """Squared differences of the quantiles between 10% and 90%, feature by feature."""

    def __init__(self, max_rows=5000, max_iter=None):
        self.max_rows, self.max_iter = max_rows, max_iter

    def distances(self, samples):
        """Return a function of a stratum and its mapped rows: the value and its gradient."""
        wanted = [np.quantile(rows, LEVELS, axis=0) for rows in samples.reference]

        def distance(stratum, mapped):
            place = LEVELS * (len(mapped) - 1)
            low = np.floor(place).astype(int)
            high, share = np.minimum(low + 1, len(mapped) - 1), (place - low)[:, None]
            order = np.argsort(mapped, axis=0)
            rows = np.take_along_axis(mapped, order, axis=0)
            gap = (1 - share) * rows[low] + share * rows[high] - wanted[stratum]
            by_rank = np.zeros(mapped.shape)  # the gradient in the sorted values
            np.add.at(by_rank, low, 2 * (1 - share) * gap / len(LEVELS))
            np.add.at(by_rank, high, 2 * share * gap / len(LEVELS))
            gradient = np.zeros(mapped.shape)
            np.put_along_axis(gradient, order, by_rank, axis=0)
            return (gap**2).sum() / len(LEVELS), gradient

        return distance


# %%
# Check the gradient
# ------------------
# A wrong gradient does not raise an error; the search just ends in the wrong place. So compare it
# with differences of the value, once, on a few random rows.

rng = np.random.default_rng(0)
few = Samples([rng.normal(size=(30, 2))], [rng.normal(size=(40, 2))], np.ones(1))
distance = InnerQuantiles().distances(few)
rows, step = few.query[0], 1e-6
slopes = np.zeros(rows.shape)
for i in np.ndindex(rows.shape):
    moved = np.zeros(rows.shape)
    moved[i] = step
    slopes[i] = (distance(0, rows + moved)[0] - distance(0, rows - moved)[0]) / (2 * step)
print(f"largest difference of the slopes: {abs(slopes - distance(0, rows)[1]).max():.1e}")


# %%
# Data with outliers
# ------------------
# Two analysers, three wards, two features. The new analyser reads :math:`(x - 1) / 1.2`. The wards
# differ, and have other shares in the two domains: they are the confounder. In some rows of the new
# analyser a sample was spoiled, and the values are far too high.


def analysers(share_spoiled, seed, n=300):
    """Return new and old rows, their wards, the truth of the new ones, and which are spoiled."""
    rng = np.random.default_rng(seed)
    wards = np.array(["A", "B", "C"])
    ward_new, ward_old = rng.choice(wards, n, p=[0.6, 0.3, 0.1]), rng.choice(wards, n)
    level = {ward: rng.normal(0, 1.5, size=2) for ward in wards}
    truth, old = (
        np.array([level[w] for w in ward]) + rng.normal(size=(n, 2))
        for ward in (ward_new, ward_old)
    )
    spoiled = rng.random(n) < share_spoiled
    new = (truth - 1) / 1.2 + spoiled[:, None] * rng.uniform(6, 10, size=(n, 2))
    return new, old, ward_new, ward_old, truth, spoiled


# %%
# Use it, and compare
# -------------------
# An instance goes where a name goes. ``shrinkage=None`` shows the plain estimates. The error is
# that of the rows that were not spoiled, against the truth, as a root mean square.

divergences = {
    "likelihood (the default)": "likelihood",
    "reverse-kl": "reverse-kl",
    "energy": "energy",
    "mmd": "mmd",
    "inner quantiles (ours)": InnerQuantiles(),
}
shares, seeds = (0.0, 0.02, 0.05, 0.1), range(3)
errors = {name: [] for name in divergences}
for share in shares:
    for name, divergence in divergences.items():
        found = []
        for seed in seeds:
            new, old, ward_new, ward_old, truth, spoiled = analysers(share, seed)
            adapter = ConDoAdapter(divergence=divergence, shrinkage=None)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                adapter.fit_pair(new, old, ward_new, ward_old)
            gap = adapter.transform(new[~spoiled]) - truth[~spoiled]
            found.append(np.sqrt((gap**2).mean()))
        errors[name].append(np.mean(found))

print(f"{'':26}" + "".join(f"{share:>7.0%}" for share in shares))
for name, values in errors.items():
    print(f"{name:26}" + "".join(f"{value:7.2f}" for value in values))

# %%
# Without spoiled samples all are about as good. With them, "reverse-kl" follows the wild values,
# since it sees means and variances only. Inner quantiles ignore them, as long as they are fewer
# than 10%: then the outermost quantile is one of theirs. The default, whose residuals are Student's
# t, "energy" and above all "mmd" withstand spoiled rows as well. So a divergence of your own is
# seldom needed against outliers; it is for what *you* know of your data.

colours = ["#2a6fb0", "#8c8c8c", "#b8a04a", "#7a5ea8", "#2e8b57"]
figure, axes = plt.subplots(figsize=(7, 3.8), layout="constrained")
for (name, values), colour in zip(errors.items(), colours, strict=True):
    ours = "ours" in name
    axes.plot(
        [100 * share for share in shares],
        values,
        "o-" if ours else "s--",
        color=colour,
        lw=2.5 if ours else 1.5,
        label=name,
    )
axes.set(
    xlabel="spoiled rows of the new analyser (%)",
    ylabel="error of the other rows (sd)",
    ylim=(0, None),
)
axes.legend(frameon=False)
axes.spines[["top", "right"]].set_visible(False)

# %%
# What the maps do
# ----------------
# In one ward with 5% spoiled rows: variances that are blown up by wild values make "reverse-kl"
# shrink all others.

new, old, ward_new, ward_old, truth, spoiled = analysers(0.05, seed=0)
figure, panels = plt.subplots(1, 2, figsize=(8, 3.4), sharey=True, layout="constrained")
for panel, divergence in zip(panels, ("reverse-kl", InnerQuantiles()), strict=True):
    adapter = ConDoAdapter(divergence=divergence, shrinkage=None)
    adapter.fit_pair(new, old, ward_new, ward_old)
    mapped = adapter.transform(new)
    bins = np.linspace(-4, 5, 22)
    shown = {
        "old analyser": (old[ward_old == "A", 0], "#2a6fb0"),
        "new analyser": (new[ward_new == "A", 0], "#e07a1f"),
        "new, mapped": (mapped[ward_new == "A", 0], "#2e8b57"),
    }
    for label, (values, colour) in shown.items():
        panel.hist(values, bins, density=True, histtype="step", lw=2, color=colour, label=label)
    name = divergence if isinstance(divergence, str) else "inner quantiles (ours)"
    panel.set(title=name, xlabel="first feature, ward A")
    panel.spines[["top", "right"]].set_visible(False)
panels[0].set_ylabel("density")
panels[0].legend(frameon=False, fontsize="small")
plt.show()

# %%
# To keep it
# ----------
# One entry in a dictionary gives it a name:
# ``condokit.divergences.DIVERGENCES["inner-quantiles"] = InnerQuantiles``. A divergence that needs
# means and variances only is shorter still: derive from ``MomentDivergence`` and write
# ``value_and_grad``. :doc:`/development/ingredients` shows it, with maps, priors and conditionals
# of your own.

# sphinx_gallery_thumbnail_number = 1
