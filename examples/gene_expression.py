"""
Gene expression in five batches
===============================

Arrays of bladder tissue, measured in five batches, are made comparable while cancer is kept.

The data are real: 57 arrays of the *bladderbatch* study, which most papers on batch effects use.
Nobody knows their truth, so this page also shows where another method looks better.
"""

# %%
# The data
# --------
# Rows are samples, columns are genes (log2 intensities), as everywhere in condokit; turn a
# table of genes x samples round with ``table.T``. We take the 2,000 genes that vary most.

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.decomposition import PCA
from sklearn.metrics import silhouette_score

from condokit import BatchAdapter, assess, datasets, evaluate

data = datasets.load_bladderbatch()
genes = np.sort(np.argsort(-data.X.var(axis=0))[:2000])
X = pd.DataFrame(data.X[:, genes], columns=np.array(data.feature_names)[genes])
samples = pd.DataFrame({"batch": data.batch, "result": data.result})
print(pd.crosstab(samples["batch"], samples["result"]))

# %%
# Batch 1 has cancers only, batches 3 and 4 have none. If we made all batches equal, most of the
# difference between cancer and normal tissue would be gone. It is what we want to keep, so it is
# the confounder.

roles = {"batch": samples["batch"], "confounders": samples[["result"]]}
print(assess(X, reference=5, **roles).findings[0])

# %%
# Fit
# ---
# Batch 5 is the reference: it has both kinds of samples. Batch 1 is compared by its cancers,
# batches 3 and 4 by their normal tissue.

study = BatchAdapter(reference=5).fit(X, **roles)
print(study.report_)

# %%
# ``before`` and ``after`` are expected systematic errors of a value in standard deviations. With
# four or five samples in a batch, nearly half a standard deviation is left. The verdicts say so:

verdicts = evaluate(study, X, **roles).batches
print(dict(zip(verdicts["batch"], verdicts["verdict"])))

# %%
# Beside other corrections
# ------------------------
# *Standardised*: every batch gets the means and the standard deviations of batch 5. *Regression*:
# genes on batch and cancer, the coefficient of the batch taken off, as ``removeBatchEffect`` of
# limma does it. Silhouettes tell how well samples group: by cancer, large is wanted; by batch,
# about zero or below.

batches = np.unique(data.batch)
design = np.column_stack([data.batch[:, None] == batches, data.result == "Cancer"]).astype(float)
effects = np.linalg.lstsq(design, X, rcond=None)[0]
last = len(batches) - 1
is_five = data.batch == 5
standardised = X.copy()
for label in batches[:-1]:
    part = X[data.batch == label]
    scores = (part - part.mean()) / part.std()
    standardised[data.batch == label] = scores * X[is_five].std() + X[is_five].mean()

tables = {
    "as recorded": X,
    "standardised": standardised,
    "regression": X - design[:, :-1] @ (effects[:-1] - effects[last]),
    "condokit": study.transform(X, batch=samples["batch"]),
}
found = {
    name: [silhouette_score(table, samples[column]) for column in ("result", "batch")]
    for name, table in tables.items()
}
print(pd.DataFrame(found, index=["by cancer", "by batch"]).T.round(2))

# %%
# Without the confounder the cancer fades; with it, samples group by cancer better than as recorded.
# The regression groups them still a little better, and so does ComBat. The page
# ``experiments/results/BATCHES.md`` (made by ``make evidence``) has the silhouettes of all methods
# with all 22,283 genes.
#
# Is a larger silhouette a smaller error? Not always: where batch and group are so closely tied,
# a correction that trusts its own estimates too much also makes groups look tighter than they are
# (`Nygaard et al., 2016 <https://doi.org/10.1093/biostatistics/kxv027>`_). Here nobody can tell.
# In the simulated studies of the same page, where the truth is known, the errors of condokit were
# the smallest.

# %%
# Before and after
# ----------------
# The first two principal components, before and after the maps.

fig, axes = plt.subplots(2, 2, figsize=(9, 7.6))
palette = dict(zip(batches, ["#7b3294", "#e07a1f", "#c2a500", "#d6336c", "#2a6fb0"]))
kinds = {"Cancer": "#222222", "NonCancer": "#8fbcd4"}
for row, name in zip(axes, ("as recorded", "condokit")):
    places = PCA(2).fit_transform(tables[name])
    for ax, column, colours in zip(row, ("batch", "result"), (palette, kinds)):
        for label, colour in colours.items():
            rows = (samples[column] == label).to_numpy()
            text = f"batch {label}" if column == "batch" else label
            ax.scatter(*places[rows].T, s=28, color=colour, label=text)
        ax.set(xticks=[], yticks=[], xlabel="PC 1", ylabel="PC 2")
        ax.set_title(f"{name}, by {'batch' if column == 'batch' else 'cancer'}")
for ax in axes[0]:
    ax.legend(fontsize=8)
fig.tight_layout()

# %%
# As recorded, the batches lie apart within each kind of tissue. After the maps they lie on
# each other, and the two kinds of tissue are apart. See the page on gene expression for other
# data, and for when another tool is the better one.
