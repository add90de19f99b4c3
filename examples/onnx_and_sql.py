"""
A map as ONNX, SQL and plain Python
===================================

Fit once, then run the map where the data are: a model server, a database, a small device.

Nothing of condokit is needed where an exported map runs. All three exports give the numbers of the
map, and leave missing what is missing. To run this example you need
``pip install 'condokit[onnx,plot]' pandas onnxruntime duckdb``.

Air quality stations get new sensors. The new NO2 sensor saturates, the new ozone sensor reads too
much. New sensors were installed along roads first, old ones remain mostly in parks: the kind of
place is the confounder.
"""

import json

import duckdb
import matplotlib.pyplot as plt
import numpy as np
import onnx
import onnxruntime
import pandas as pd

from condokit import ConDoAdapter
from condokit.export import to_onnx, to_python, to_sql

rng = np.random.default_rng(0)
n = 1200
sensor = rng.choice(["new", "old"], n)
at_road = rng.random(n) < np.where(sensor == "new", 0.7, 0.3)
no2 = np.where(at_road, 48, 24) + 9 * rng.normal(size=n)
ozone = np.where(at_road, 40, 62) + 11 * rng.normal(size=n)
table = pd.DataFrame(
    {
        "hour": np.arange(n),
        "sensor": sensor,
        "place": np.where(at_road, "road", "park"),
        "no2": np.where(sensor == "new", 30 * np.arcsinh(no2 / 20), no2),
        "ozone": np.where(sensor == "new", 1.15 * ozone + 6, ozone),
    }
)
table.loc[rng.choice(n, 40), "no2"] = np.nan  # hours of maintenance

adapter = ConDoAdapter("monotone", reference="old").fit(
    table, domain="sensor", confounders=["place"], features=["no2", "ozone"]
)
new_to_old = adapter.map_
new = table[table["sensor"] == "new"]
expected = new_to_old(new).to_numpy()
print(new_to_old)

# %%
# ONNX
# ----
# The model has one input ``X`` and one output ``Y``, tables of doubles with a column for each
# feature. The names of the columns are in its metadata.

content = to_onnx(new_to_old)  # the content of an .onnx file
session = onnxruntime.InferenceSession(content)
names = json.loads(session.get_modelmeta().custom_metadata_map["feature_names"])
(from_onnx,) = session.run(["Y"], {"X": new[names].to_numpy()})
print(names, f"{len(content):,} bytes")

# %%
# SQL
# ---
# ``to_sql`` writes a SELECT that most databases understand: make it a view, and everybody who
# reads the view sees the units of the old sensors. Curves become ``CASE`` expressions, NULL stays
# NULL.

query = to_sql(new_to_old, "incoming", keep=["hour"])
print(query[:290], "...")

database = duckdb.connect()
database.register("incoming", new)
database.execute(f"CREATE VIEW comparable AS {query}")
from_sql = database.sql("SELECT no2, ozone FROM comparable").df().to_numpy(dtype=float)

# %%
# Python without packages
# -----------------------
# ``to_python`` writes a module with a function ``adapt`` for one row, which imports ``math`` and
# ``bisect`` alone.

source = to_python(new_to_old)
module = {}
exec(source, module)
from_python = np.array([list(module["adapt"](row).values()) for row in new.to_dict("records")])
print(module["adapt"]({"hour": 7, "no2": 45.0, "ozone": None}))

# %%
# The same numbers
# ----------------

for name, found in {"ONNX": from_onnx, "SQL": from_sql, "Python": from_python}.items():
    difference = np.nanmax(np.abs(found - expected))
    same_gaps = (np.isnan(found) == np.isnan(expected)).all()
    print(f"{name:7} largest difference {difference:.0e}; same missing values: {same_gaps}")
    assert difference < 1e-10
    assert same_gaps

# %%
# The curve of the saturating sensor, as the map has it, with what the three exports say of some
# hours, and the truth.

fig, ax = plt.subplots(figsize=(6.5, 4.2))
x = np.linspace(new["no2"].min(), new["no2"].max(), 200)
curve = new_to_old(pd.DataFrame({"no2": x, "ozone": np.nan}))["no2"]
ax.plot(x, 20 * np.sinh(x / 30), color="#888888", linestyle="--", label="truth")
ax.plot(x, curve, color="#2e8b57", linewidth=2, label="map")
some = np.argsort(new["no2"].to_numpy())[5 : new["no2"].notna().sum() : 60]
exports = {"ONNX": (from_onnx, "o", 11), "SQL": (from_sql, "s", 7), "Python": (from_python, ".", 6)}
for (label, (found, mark, size)), colour in zip(exports.items(), ("#e07a1f", "#2a6fb0", "black")):
    at = new["no2"].to_numpy()[some]
    filled = {"markerfacecolor": "none"} if label != "Python" else {}
    ax.plot(at, found[some, 0], mark, color=colour, markersize=size, label=label, **filled)
ax.set_xlabel("NO2 of the new sensor (µg/m³)")
ax.set_ylabel("in units of the old sensor (µg/m³)")
ax.spines[["top", "right"]].set_visible(False)
ax.legend(frameon=False)
fig.tight_layout()

# %%
# The map and a model in one file
# -------------------------------
# A model that is in ONNX already can be joined with the map, so that nobody can forget the map.
# Here the model is a weighted sum (an index of air quality). Most models take float32: cast between
# the two. Both must have the same opset, that of the map is 13.

weights = np.array([[0.6], [0.4]], dtype=np.float32)
helper, double, single = onnx.helper, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT
graph = helper.make_graph(
    [
        helper.make_node("Cast", ["features"], ["single"], to=single),
        helper.make_node("MatMul", ["single", "weights"], ["index"]),
    ],
    "frozen_model",
    [helper.make_tensor_value_info("features", double, ["rows", 2])],
    [helper.make_tensor_value_info("index", single, ["rows", 1])],
    [onnx.numpy_helper.from_array(weights, "weights")],
)
first = onnx.load_from_string(content)
second = helper.make_model(graph, opset_imports=first.opset_import, ir_version=first.ir_version)
both = onnx.compose.merge_models(first, second, io_map=[("Y", "features")])

service = onnxruntime.InferenceSession(both.SerializeToString())
(index,) = service.run(["index"], {"X": new[names].to_numpy()})
agree = np.allclose(index, expected @ weights, rtol=1e-6, equal_nan=True)
print(f"{len(index)} hours; as from the map and then the model: {agree}")

# %%
# On the command line: ``condokit export map.json --onnx map.onnx --sql map.sql --python adapt.py``.
# :doc:`/guide/deploy` has the rest: limits, checks at run time, and files.
