"""Files of every version since the schemas were frozen are read as they were written."""

import io
import json

import numpy as np
import pytest
from frozen import FOLDER, MAPS, ROWS, described

from condokit import BatchAdapter, Statistics, load_map

VERSIONS = sorted(path.name for path in FOLDER.iterdir() if path.is_dir())


def contents(version, name):
    return json.loads((FOLDER / version / f"{name}.json").read_text())


def assert_same(found, known):
    """Compare JSON whose last digits depend on the order of sums."""
    assert type(found) is type(known)
    if isinstance(known, dict):
        assert set(found) == set(known)
        for key in known:
            assert_same(found[key], known[key])
    elif isinstance(known, list):
        assert len(found) == len(known)
        for one, other in zip(found, known):
            assert_same(one, other)
    elif isinstance(known, float):
        assert found == pytest.approx(known, rel=1e-9, abs=1e-12)
    else:
        assert found == known


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", MAPS)
def test_maps_of_earlier_versions_map_as_they_did(version, name, tmp_path):
    known = contents(version, "mapped")
    np.testing.assert_array_equal(np.array(known["rows"], float), ROWS)
    loaded = load_map(FOLDER / version / f"{name}.json")
    assert_same(described(loaded), known["maps"][name])
    loaded.save(tmp_path / "again.json")
    assert_same(described(load_map(tmp_path / "again.json")), known["maps"][name])
    again = json.loads((tmp_path / "again.json").read_text())
    for key, value in contents(version, name).items():  # nothing that was written is lost
        assert key in ("condokit", "schema", "sha256") or again[key] == value, key


@pytest.mark.parametrize("version", VERSIONS)
def test_maps_of_many_batches_map_as_they_did(version):
    known = contents(version, "mapped")["maps"]
    study = BatchAdapter.load(FOLDER / version / "batches.json")
    assert len(study.maps_) == 3
    for label in "BC":
        assert_same(described(study.maps_[label]), known[f"batches {label}"])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["categories", "numbers", "values", "sites"])
def test_statistics_of_earlier_versions_hold_the_same_sums(version, name):
    written = contents(version, f"statistics-{name}")
    stats = Statistics.load(FOLDER / version / f"statistics-{name}.json")
    moments = stats.sums.moments
    for k, cell in enumerate(written["cells"]):
        for key in ("count", "mean", "squares"):
            values = np.array(cell[key], float)
            held = np.asarray(getattr(moments, key)[k], float)
            known = ~np.isnan(values)
            assert known.any()
            np.testing.assert_array_equal(held[known], values[known])
    assert (written["continuous"] is not None) == (name == "numbers")
    assert (len(written["values"]) > 0) == (name == "values")
    content = io.BytesIO()
    stats.save(content)
    again = json.loads(content.getvalue())
    for key in ("feature_names", "confounders", "min_cell", "continuous"):
        assert_same(again[key], written[key])
