"""
Three spectrometers, with and without standards
===============================================

Spectra of two secondary instruments are brought to the primary one, without standards given the
moisture, and with 5 or 10 standards; a frozen PLS calibration tells who wins.
"""

# %%
# A calibration for oil, protein and starch in corn was made on the *primary* spectrometer, m5. Two
# other instruments, mp5 and mp6, now measure samples of their own. The calibration cannot be made
# again. In our words the primary instrument is the *reference*, and a secondary one is the *query*.
#
# 80 samples were in fact measured on all three instruments (Cargill, by way of Eigenvector
# Research). So the truth is known, and everything here can be scored. The loader looks in the
# folder ``CONDOKIT_DATA``; where the files are absent, it says where they come from.

import textwrap

import matplotlib.pyplot as plt
import numpy as np
from sklearn.cross_decomposition import PLSRegression

from condokit import ConDoAdapter, datasets, evaluate

QUERY, REFERENCE, MAPPED, GREY = "#e07a1f", "#2a6fb0", "#2e8b57", "#8a8f98"

corn = datasets.load_corn()
nm, moisture = corn.wavelengths, corn.chemistry["Moisture"]
primary = corn.spectra["m5"]

fig, (left, right) = plt.subplots(1, 2, figsize=(7.6, 3.2), layout="constrained")
for name, colour in (("m5", REFERENCE), ("mp5", QUERY), ("mp6", "#a8501a")):
    left.plot(nm, corn.spectra[name].mean(axis=0), color=colour, label=name)
    if name != "m5":
        gap = (corn.spectra[name] - primary).mean(axis=0)
        right.plot(nm, gap, color=colour, label=f"{name} minus m5")
right.fill_between(
    nm,
    -primary.std(axis=0),
    primary.std(axis=0),
    color=REFERENCE,
    alpha=0.15,
    lw=0,
    label="sd of m5",
)
left.set(xlabel="wavelength (nm)", ylabel="absorbance", title="Mean spectra of 80 samples")
right.set(xlabel="wavelength (nm)", title="Mean difference to m5")
left.legend(frameon=False)
right.legend(frameon=False)
plt.show()

# %%
# Different samples on each instrument
# ------------------------------------
#
# We now pretend that each sample was measured once. 20 samples are set aside to score. Of the
# others, wet ones went to the new instrument more often than dry ones. So the two sets of spectra
# differ for two reasons: the instruments, and the water. The water is real. It must stay.


def split(seed):
    """Return rows for the secondary instrument, for the primary one, and for the score."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(80)
    test, rest = order[:20], order[20:]
    third = np.digitize(moisture[rest], np.quantile(moisture[rest], [1 / 3, 2 / 3]))
    goes = rng.random(60) < np.array([0.15, 0.5, 0.85])[third]
    return rest[goes], rest[~goes], test


query, reference, test = split(seed=0)
print(f"mp5: {len(query)} samples with a mean moisture of {moisture[query].mean():.2f}%")
print(f"m5:  {len(reference)} samples with a mean moisture of {moisture[reference].mean():.2f}%")

# %%
# 1. No standards: moisture as the confounder
# -------------------------------------------
#
# Moisture is known for all samples, from the oven. A confounder is what you want to keep.

secondary = corn.spectra["mp5"]
given = ConDoAdapter().fit_pair(
    secondary[query], primary[reference], moisture[query], moisture[reference]
)
ignored = ConDoAdapter().fit_pair(secondary[query], primary[reference])

table = np.vstack([secondary[query], primary[reference]])
roles = {
    "domain": np.repeat(["query", "reference"], [len(query), len(reference)]),
    "confounders": {"moisture": np.concatenate([moisture[query], moisture[reference]])},
}
print(textwrap.fill(evaluate(given, table, **roles).sentence, 70))

# %%
# 2. Five standards
# -----------------
#
# Five samples are now measured on both instruments. ``pairs`` tells which rows belong together:
# here the first five of each table. The other rows stay in the fit, with their moisture.


def with_standards(name, query, reference, standards):
    """Fit a map from spectra of two instruments, some of the same samples."""
    n = len(standards)
    here, there = (
        np.append(standards, np.setdiff1d(side, standards)) for side in (query, reference)
    )
    X_query, X_reference = corn.spectra[name][here], primary[there]
    first = np.arange(n)
    return ConDoAdapter(warn_overlap=0.2).fit_pair(
        X_query, X_reference, moisture[here], moisture[there], pairs=(first, first)
    )


standards = np.random.default_rng(0).choice(np.append(query, reference), 5, replace=False)
paired = with_standards("mp5", query, reference, standards)
for name, share in paired.report_["pairs"]["weights"].items():
    print(f"{name:15} {share:.2f}")

# %%
# These weights tell from where the map starts before it is corrected by the standards. What is left
# of the difference on the 20 samples that no fit has seen:

shown = {
    "as recorded": (secondary[test], QUERY),
    "matched, moisture ignored": (ignored.transform(secondary[test]), GREY),
    "given moisture": (given.transform(secondary[test]), "#7fb99a"),
    "given moisture, 5 standards": (paired.transform(secondary[test]), MAPPED),
}
fig, (left, right) = plt.subplots(1, 2, figsize=(7.6, 3.4), layout="constrained")
sample = test[0]
left.plot(nm, primary[sample], color=REFERENCE, lw=3, alpha=0.5, label="m5, the same sample")
for name, (spectra, colour) in shown.items():
    right.plot(nm, (spectra - primary[test]).mean(axis=0), color=colour, label=name)
    if name in ("as recorded", "given moisture, 5 standards"):
        left.plot(nm, spectra[0], color=colour, lw=1.2, label=f"mp5, {name}")
right.axhline(0, color="black", lw=0.6)
left.set(xlabel="wavelength (nm)", ylabel="absorbance", title="One held-out sample")
right.set(xlabel="wavelength (nm)", title="Mean difference, 20 held-out")
left.legend(frameon=False, fontsize=8)
right.legend(frameon=False, fontsize=8)
plt.show()

# %%
# Without the moisture, the map takes a real difference between the samples for one between the
# instruments. Given the moisture less is left. Standards remove most of the rest.
#
# 3. A frozen calibration
# -----------------------
#
# What counts is the prediction. PLS models with 8 latent variables are trained on spectra of m5 and
# then frozen. We predict held-out samples from spectra of mp5 and mp6. RMSEP is the root mean
# squared error of prediction, averaged over 6 random splits and both instruments. In some splits
# the moistures hardly overlap; ``warn_overlap`` keeps the page short.
#
# Beside condokit are the usual methods, from the same standards, in a few lines each.


def bias(X, Y):
    """Add the mean difference of standards at each wavelength."""
    return lambda new: new + (Y - X).mean(axis=0)


def slope_and_bias(X, Y):
    """Regress at each wavelength."""
    left, right = X - X.mean(axis=0), Y - Y.mean(axis=0)
    slope = (left * right).sum(axis=0) / (left**2).sum(axis=0)
    return lambda new: Y.mean(axis=0) + slope * (new - X.mean(axis=0))


def direct(X, Y):
    """Direct standardisation (DS): one matrix for all wavelengths."""
    F = np.linalg.pinv(X - X.mean(axis=0)) @ (Y - Y.mean(axis=0))
    return lambda new: Y.mean(axis=0) + (new - X.mean(axis=0)) @ F


def piecewise(X, Y, half=2):
    """Piecewise direct standardisation (PDS): each wavelength from five neighbours."""
    left, right = X - X.mean(axis=0), Y - Y.mean(axis=0)
    F = np.zeros((X.shape[1], X.shape[1]))
    for j in range(X.shape[1]):
        near = slice(max(j - half, 0), j + half + 1)
        F[near, j] = np.linalg.pinv(left[:, near], rcond=0.1) @ right[:, j]
    return lambda new: Y.mean(axis=0) + (new - X.mean(axis=0)) @ F


def condokit_paired(X, Y):
    """Fit to standards alone."""
    rows = np.arange(len(X))
    return ConDoAdapter().fit_pair(X, Y, pairs=(rows, rows)).transform


PROPERTIES = ("Oil", "Protein", "Starch")
CLASSIC = {"bias": bias, "slope and bias": slope_and_bias, "DS": direct, "PDS": piecewise}


def maps(name, query, reference, seed):
    """Yield names and functions that bring spectra of an instrument to the primary one."""
    X = corn.spectra[name]
    unpaired = X[query], primary[reference]
    yield "as recorded", lambda new: new
    yield "matched, moisture ignored", ConDoAdapter().fit_pair(*unpaired).transform
    z = moisture[query], moisture[reference]
    yield "condokit: no standards", ConDoAdapter(warn_overlap=0.2).fit_pair(*unpaired, *z).transform
    drawn = np.random.default_rng(seed).permutation(np.append(query, reference))
    for n in (5, 10):
        for method, learn in {**CLASSIC, "condokit: standards alone": condokit_paired}.items():
            yield f"{method}, {n}", learn(X[drawn[:n]], primary[drawn[:n]])
        fitted = with_standards(name, query, reference, drawn[:n])
        yield f"condokit: all rows, {n}", fitted.transform


errors = {}


def score(method, models, adapted, test):
    """Keep the errors of frozen models on spectra of held-out samples."""
    gaps = [models[p].predict(adapted).ravel() - corn.chemistry[p][test] for p in PROPERTIES]
    errors.setdefault(method, []).append(np.sqrt(np.mean(np.square(gaps), axis=1)))


for seed in range(6):
    query, reference, test = split(seed)
    known = np.append(query, reference)
    models = {p: PLSRegression(8).fit(primary[known], corn.chemistry[p][known]) for p in PROPERTIES}
    score("m5 itself", models, primary[test], test)
    for name in ("mp5", "mp6"):
        for method, to_primary in maps(name, query, reference, seed):
            score(method, models, to_primary(corn.spectra[name][test]), test)
rmsep = {method: np.mean(values, axis=0) for method, values in errors.items()}

order = ["as recorded", "matched, moisture ignored", "condokit: no standards"]
for n in (5, 10):
    order += [f"{m}, {n}" for m in ("DS", "PDS", "slope and bias", "bias")]
    order += [f"condokit: standards alone, {n}", f"condokit: all rows, {n}"]
order += ["m5 itself"]
print(f"{'RMSEP (%)':33}" + "".join(f"{p:>9}" for p in PROPERTIES))
for method in order:
    print(f"{method:33}" + "".join(f"{value:9.3f}" for value in rmsep[method]))

# %%

fig, axes = plt.subplots(1, 3, figsize=(7.6, 4.6), sharey=True, layout="constrained")
for j, (axis, name) in enumerate(zip(axes, PROPERTIES)):
    values = np.array([rmsep[method][j] for method in order])
    colours = [
        MAPPED
        if "condokit" in m
        else QUERY
        if m == "as recorded"
        else REFERENCE
        if "m5" in m
        else GREY
        for m in order
    ]
    most = 3.2 * rmsep["m5 itself"][j]
    axis.barh(range(len(order)), np.minimum(values, most), color=colours)
    for place in np.flatnonzero(values > most):
        axis.text(
            most, place, f"{values[place]:.2f} ", ha="right", va="center", color="white", size=8
        )
    axis.axvline(rmsep["m5 itself"][j], color=REFERENCE, lw=1, ls=":")
    axis.set(title=name, xlabel="RMSEP (%)", xlim=(0, most))
    axis.spines[["top", "right"]].set_visible(False)
axes[0].set_yticks(range(len(order)), order, fontsize=8)
axes[0].invert_yaxis()
plt.show()

# %%
# Who wins
# --------
#
# - Without any standard, a map undoes most of the damage. Given the moisture it predicts oil and
#   protein better than a map that ignores it, and starch a little worse. The other methods need
#   standards.
# - With standards, condokit and **the plain bias of the standards are alike**, and nothing is
#   better. These instruments differ by an offset at each wavelength, and the bias can do only that.
#   Slopes are noise here: slope and bias, and PDS, need 10 standards to do what the bias does with
#   5. condokit finds out by itself that slopes are not worth much.
# - Direct standardisation fits a matrix of 700 x 700 numbers to a handful of samples. It is the
#   worst.
# - Nobody reaches m5 itself. The instruments see each sample with noise of their own.
#
# So where standards can be measured and instruments differ by an offset, the bias is all you need.
# condokit is for when standards are few or absent, when you do not know what kind of difference it
# is, and when you want an error estimate. The same comparison on 21 pairs of instruments is in
# ``experiments/results/STANDARDS.md`` of the repository.

# sphinx_gallery_thumbnail_number = 2
