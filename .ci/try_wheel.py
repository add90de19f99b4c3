"""Try condokit where it was installed alone: public names, fits, files, and what extras say."""

import importlib.util
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np

warnings.simplefilter("error")

import condokit  # noqa: E402

folder = Path(tempfile.mkdtemp())
command = Path(sys.executable).with_name("condokit")


def run(*arguments: str) -> str:
    return subprocess.run(
        [command, *arguments], cwd=folder, check=True, capture_output=True, text=True
    ).stdout


for name in condokit.__all__:
    getattr(condokit, name)
assert Path(condokit.__file__).is_relative_to(sys.prefix), condokit.__file__
assert run("--version").split()[-1] == condokit.__version__
run("demo", "demo")
for name in ("map.json", "report.html", "adapted.csv"):
    assert (folder / "demo" / name).stat().st_size > 1000, name

eeg = condokit.datasets.make_eeg(random_state=0)
pair = eeg.X_query, eeg.X_reference, eeg.seizure_query, eeg.seizure_reference
before = abs(eeg.X_query - eeg.truth).mean()
for kind in ("auto", "monotone", "location-scale"):
    adapter = condokit.ConDoAdapter(map=kind).fit_pair(*pair)
    error = abs(adapter.transform(eeg.X_query) - eeg.truth).mean() / before
    assert error < 0.3, (kind, error)
rows, device = np.vstack(pair[:2]), np.repeat(["v2", "v1"], [len(pair[0]), len(pair[1])])
adapter = condokit.ConDoAdapter(reference="v1")
adapter.fit(rows, domain=device, confounders=np.concatenate(pair[2:]))
verdict = condokit.evaluate(
    adapter, rows, domain=device, confounders=np.concatenate(pair[2:])
).verdict
assert verdict == "better", verdict
adapter.map_.save(folder / "map.json")
again = condokit.load_map(folder / "map.json")
assert np.array_equal(again.transform(eeg.X_query), adapter.transform(eeg.X_query))
assert "SELECT" in condokit.export.to_sql(adapter.map_, "rows", names=eeg.feature_names)
exec(compile(condokit.export.to_python(adapter.map_), "adapt.py", "exec"), {"__name__": "adapt"})

# what is said where an extra is absent; dask brings its own tables, so that nobody can lack it
(folder / "x.h5ad").write_bytes(b"")
chained = condokit.ConDoAdapter(divergence="mmd", conditional="chained")
asks = {
    "anndata": ("anndata", lambda: condokit.anndata.adapt(None, batch_key="b", reference="r")),
    "lightgbm": ("lightgbm", lambda: chained.fit_pair(*pair)),
    "onnx": ("onnx", lambda: condokit.export.to_onnx(adapter.map_)),
    "plot": ("matplotlib", lambda: condokit.plots.map_intervals(adapter)),
}
for extra, (module, call) in asks.items():
    assert importlib.util.find_spec(module) is None, f"{module} is installed"
    said = "nothing"
    try:
        call()
    except ModuleNotFoundError as error:
        said = str(error)
    assert f"condokit[{extra}]" in said, (extra, said)
failed = subprocess.run(
    [command, "check", "x.h5ad", "--domain", "d", "--reference-label", "r"],
    cwd=folder,
    capture_output=True,
    text=True,
)
assert failed.returncode == 2, failed
assert "condokit[anndata]" in failed.stderr, failed
assert "Traceback" not in failed.stderr, failed
