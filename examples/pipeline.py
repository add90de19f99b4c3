"""
Pipelines, grid search and metadata routing
===========================================

Use the adapter as a step of scikit-learn: what has to be routed, and what does not.

There are two situations.

1. A model exists, and cannot be trained again: put the fitted *map* in front of it. Nothing has to
   be routed.
2. A model is trained now, with data of both devices: put the *adapter* into the pipeline. It needs
   the device and the confounders of every row, which scikit-learn calls *metadata*.
"""

import textwrap

import matplotlib.pyplot as plt
import numpy as np
import sklearn
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import make_scorer
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from condokit import ConDoAdapter, datasets

eeg = datasets.make_eeg(random_state=0)
table = eeg.to_frame().sample(frac=1, random_state=0)  # rows of both devices, mixed
names = eeg.feature_names
new, old = table[table["device"] == "v2"], table[table["device"] == "v1"]

# %%
# A frozen map in front of a fitted model
# ---------------------------------------
# ``map_`` is a transformer that is always fitted, so a pipeline of it and a fitted model can
# predict at once. It finds its features by name; other columns are ignored.

model = make_pipeline(StandardScaler(), LogisticRegression())
_ = model.fit(old[names], old["depression"])
roles = {"domain": "device", "confounders": ["seizure"], "features": ["eeg_*"]}
adapter = ConDoAdapter(reference="v1").fit(table, **roles)

service = make_pipeline(adapter.map_, model)
print(f"without the map {model.score(new[names], new['depression']):.1%}")
print(f"with the map    {service.score(new, new['depression']):.1%}")

# %%
# The model sees the columns that it was trained on, in their order, since the result of the map is
# a data frame like the one that came in. ``set_output`` chooses another kind.

print(type(adapter.map_.transform(new)).__module__.split(".")[0])
print(type(adapter.set_output(transform="polars").transform(new)).__module__.split(".")[0])
_ = adapter.set_output(transform="default")

# %%
# The adapter as a step
# ---------------------
# Now a new model is to be trained. Depression is known of the people of the old device only; the
# people of the new device have no label yet, but help to learn the map. Three kinds of metadata go
# to different steps:
#
# - ``domain`` and ``confounders`` to ``fit`` of the adapter,
# - ``domain`` also to ``transform`` of the adapter, so that rows of the reference stay as they are,
# - ``sample_weight``, which is 0 for rows without a label, to the scaler and the model, but not to
#   the adapter.

sklearn.set_config(enable_metadata_routing=True)
adapt = (
    ConDoAdapter(reference="v1")
    .set_fit_request(domain=True, confounders=True, sample_weight=False)
    .set_transform_request(domain=True)
)
scale = StandardScaler().set_fit_request(sample_weight=True)
model = LogisticRegression().set_fit_request(sample_weight=True)
pipeline = Pipeline([("adapt", adapt), ("scale", scale), ("model", model)])

X, y = table[names], table["depression"]
metadata = {
    "domain": table["device"],
    "confounders": table[["seizure"]],
    "sample_weight": (table["device"] == "v1").astype(float),
}
_ = pipeline.fit(X, y, **metadata)

# %%
# All columns of ``X`` are features here, since a pipeline hands ``X`` on as it is. In production
# all rows come from the new device: without ``domain``, every row is mapped.

print(pipeline.predict(new[names].head()))

# %%
# Grid search
# -----------
# scikit-learn cuts metadata to the rows of each fold, so that map and model are learned from
# training rows alone. Folds need rows of both devices and of every level: stratify by device and
# confounder together. What counts is the accuracy on held-out rows of the *new* device, so the
# scorer asks for ``domain``, too.


def accuracy_on_new(y, predicted, domain):
    """Return the share of right predictions among rows of the new device."""
    is_new = np.asarray(domain) == "v2"
    return np.mean(np.asarray(y)[is_new] == predicted[is_new])


cell = table["device"] + table["seizure"].astype(str)
search = GridSearchCV(
    pipeline,
    {
        "adapt__map": ["identity", "shift", "location-scale"],
        "adapt__shrinkage": ["auto", 0.5, None],
    },
    scoring=make_scorer(accuracy_on_new).set_score_request(domain=True),
    cv=list(StratifiedKFold(5, shuffle=True, random_state=0).split(X, cell)),
)
search.fit(X, y, **metadata)
print(search.best_params_)

# %%
# The defaults are the best or as good as the best: a shift alone is not enough, and half of the way
# to the reference (``shrinkage=0.5``) is worse than what the data choose.

found = search.cv_results_
kinds = list(dict.fromkeys(found["param_adapt__map"]))
fig, ax = plt.subplots(figsize=(7, 3))
for colour, pull in zip(("#2e8b57", "#e07a1f", "#2a6fb0"), ("auto", 0.5, None)):
    mine = [k for k, p in enumerate(found["params"]) if p["adapt__shrinkage"] == pull]
    mean, error = found["mean_test_score"][mine], found["std_test_score"][mine] / np.sqrt(5)
    place = np.arange(len(kinds)) + {"auto": -0.15, 0.5: 0.0, None: 0.15}[pull]
    ax.errorbar(mean, place, xerr=error, fmt="o", color=colour, label=f"shrinkage={pull!r}")
ax.set_yticks(range(len(kinds)), [f"map={kind!r}" for kind in kinds])
ax.invert_yaxis()
ax.set_xlabel("held-out accuracy on the new device (standard errors of 5 folds)")
ax.spines[["top", "right"]].set_visible(False)
ax.legend(frameon=False, loc="upper right")
fig.tight_layout()

# %%
# Two cautions
# ------------
# *A score of predictions is not a score of the map.* It needs labels of the new device, and one
# model may be right where another is not. To judge the map itself use :func:`condokit.evaluate`,
# which needs no labels, and let ``map="auto"`` choose among kinds of maps by how well they predict
# features.
#
# *Nothing that is unknown later may be needed later.* The adapter never uses ``y``. It uses
# confounders to fit; ``transform`` and ``predict`` do not take them:

try:
    adapter.transform(new, confounders=new["seizure"])
except TypeError as error:
    print(textwrap.fill(str(error), 80))

# %%
# What happens without a request
# ------------------------------
# Both requests of ``domain`` are needed. With one of the two, scikit-learn stops:

asked = ConDoAdapter(reference="v1").set_fit_request(domain=True, confounders=True)
try:
    make_pipeline(asked, LogisticRegression()).fit(X, y, **metadata)
except ValueError as error:
    print(textwrap.fill(str(error), 80))

sklearn.set_config(enable_metadata_routing=False)

# %%
# Without routing switched on, ``fit(X, y, adapt__domain=..., adapt__confounders=...)`` still works,
# but ``score`` and ``predict`` cannot be told the domain, and map all rows.
