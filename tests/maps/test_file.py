"""The map file: exact, described by a schema, and safe to read whoever wrote it."""

import contextlib
import copy
import json
import os
import pickle
import random
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import numpy as np
import pandas as pd
import polars as pl
import pytest
from mutations import mutated_bytes
from reading import from_pair, from_table
from sklearn import config_context
from sklearn.base import clone
from sklearn.pipeline import make_pipeline

from condokit import AffineMap, BatchAdapter, ConDoAdapter, MapFileError, datasets, load_map
from condokit.io import documents
from condokit.maps.families import LocationScale
from condokit.maps.profile import Profile
from condokit.maps.provenance import fingerprint

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "docs" / "reference" / "map-schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def write_document(path, document):
    """Write changed content with a hash that fits."""
    document = {key: value for key, value in document.items() if key != "sha256"}
    document["sha256"] = "0" * 64
    with contextlib.suppress(ValueError):  # of half a character
        document["sha256"] = documents.digest(document)
    path.write_text(json.dumps(document).replace("Infinity", "1e999"))


def make(kind):
    rng = np.random.default_rng(0)
    parts = {"feature_names": list("abc")}
    scale = rng.normal(size=3)
    if kind == "dense":
        scale = rng.normal(size=(3, 3))
    elif kind == "rectangular":
        scale, parts["output_names"] = rng.normal(size=(2, 3)), ["u", "v"]
    elif kind == "low-rank":
        parts |= {"left": rng.normal(size=(3, 1)), "right": rng.normal(size=(3, 1))}
    elif kind == "unnamed":
        parts = {}
    if kind == "links":
        parts["links"] = ["log", 0.5, None]
    provenance = {
        "versions": {"condokit": "0.1.0"},
        "map": kind,
        "warnings": ["a"],
        "standard_errors": True,
        "overlap": {"coefficient": 0.5, "by_confounder": {"z": 0.5}},
    }
    profile = Profile.of(rng.normal(size=(200, 3)), 200)
    offset = rng.normal(size=len(scale))
    return AffineMap(scale, offset, **parts, fitted_on=profile, provenance=provenance)


KINDS = ["diagonal", "dense", "rectangular", "low-rank", "unnamed", "links"]


@pytest.fixture(scope="module")
def eeg():
    return datasets.make_eeg(random_state=0).to_frame()


def fit(eeg, **settings):
    roles = {"domain": "device", "confounders": ["seizure"], "features": ["eeg_*"]}
    return ConDoAdapter(reference="v1", **settings).fit(eeg, **roles).map_


def test_the_schema_is_one():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("kind", KINDS)
def test_saved_files_follow_the_schema_and_are_read_back(kind, tmp_path):
    affine, path = make(kind), tmp_path / "map.json"
    affine.save(path)
    VALIDATOR.validate(json.loads(path.read_text()))
    loaded = AffineMap.load(path)
    assert loaded == affine
    assert loaded.provenance == affine.provenance
    loaded.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()


def test_files_from_before_provenance_are_read(tmp_path):
    old = {
        "format": "condokit-map",
        "schema": 1,
        "condokit": "0.1.0",
        "kind": "diagonal",
        "feature_names": ["a", "b"],
        "scale": [2.0, 0.5],
        "offset": [1.0, -1.0],
        "sha256": "86e1facac7ccf6856073339662c6050da78c7542589ca4279e9b7c81b780431e",
    }
    path = tmp_path / "old.json"
    path.write_text(json.dumps(old, indent=1))
    loaded = AffineMap.load(path)
    assert loaded == AffineMap([2.0, 0.5], [1.0, -1.0], ["a", "b"])
    assert loaded.provenance is None
    VALIDATOR.validate(old)
    path.write_text(json.dumps({**old, "unknown": 1}))
    with pytest.raises(MapFileError, match="does not fit its hash"):
        AffineMap.load(path)
    write_document(path, {**old, "a later key": {"is": ["ignored"]}})
    assert AffineMap.load(path) == loaded


@pytest.mark.parametrize("kind", ["diagonal", "low-rank", "dense"])
def test_files_of_schema_1_are_read_for_ever(kind, tmp_path):
    path = Path(__file__).parent / "schema1" / f"{kind}.json"  # written by condokit 0.1.0
    written = json.loads(path.read_text())
    VALIDATOR.validate(written)
    loaded = AffineMap.load(path)
    assert written["schema"] == 1
    assert loaded.kind == kind
    for name in ("scale", "offset", "left", "right"):
        if name in written:
            np.testing.assert_array_equal(getattr(loaded, name), written[name])
    assert loaded.feature_names == ("dose", "rate", "size", "share")
    assert loaded.links == ("log", 0.5, None, "logit")
    assert json.loads(json.dumps(loaded.provenance)) == written["provenance"]
    assert loaded.fitted_on.to_dict() == written["fitted_on"]
    known = json.loads((path.parent / "mapped.json").read_text())
    X = np.array(known["rows"], dtype=float)
    np.testing.assert_allclose(loaded(X), np.array(known["mapped"][kind], dtype=float), rtol=1e-12)
    loaded.save(tmp_path / "map.json")
    new = json.loads((tmp_path / "map.json").read_text())
    same = {name: written[name] for name in ("condokit", "schema", "sha256")}
    assert {**new, **same} == written
    assert load_map(tmp_path / "map.json") == load_map(path) == loaded


@pytest.mark.parametrize("name", ["blocks", "jeffreys", "procrustes", "sliced-wasserstein"])
def test_maps_of_removed_kinds_are_read_and_map_as_before(name, tmp_path):
    path = Path(__file__).parent / "removed" / f"{name}.json"  # written by condokit 1.0.0rc1
    loaded = load_map(path)
    assert name in (loaded.provenance["map"], loaded.provenance["divergence"])
    known = json.loads((path.parent / "mapped.json").read_text())
    np.testing.assert_allclose(loaded(np.array(known["rows"])), known["mapped"][name], rtol=1e-12)
    loaded.save(tmp_path / "map.json")
    assert load_map(tmp_path / "map.json").provenance == loaded.provenance
    if name == "blocks":
        np.testing.assert_array_equal(loaded.A[2:, :2], 0)
        np.testing.assert_array_equal(loaded.A[:2, 2:], 0)
        assert (loaded.A[:2, :2] != 0).all()


@pytest.mark.parametrize("name", ["dense", "monotone", "batches", "places"])
def test_files_of_schema_2_are_read_for_ever(name):
    path = Path(__file__).parent / "schema2" / f"{name}.json"  # written by condokit 1.0.0rc1
    written = json.loads(path.read_text())
    assert (written["schema"], written["condokit"]) == (2, "1.0.0rc1")
    reader = BatchAdapter.load if written["kind"] == "batches" else load_map
    content = json.loads(json.dumps(reader(path).to_dict()))
    assert content == {key: value for key, value in written.items() if key in content}


# provenance


def test_a_fitted_map_knows_how_it_was_fitted(eeg):
    facts = fit(eeg, random_state=3, n_jobs=2).provenance
    assert facts["versions"]["numpy"] == np.__version__
    assert facts["adapter"]["random_state"] == 3
    assert facts["adapter"]["n_jobs"] == 2
    assert (facts["map"], facts["divergence"]) == ("location-scale", "likelihood")
    assert facts["confounders"] == {"seizure": "categorical"}
    assert facts["domains"] == {"query": "v2", "reference": "v1"}
    assert facts["rows"] == {"query": 400, "reference": 500}
    assert facts["overlap"]["by_confounder"] == {"seizure": 0.59}
    assert facts["standard_errors"] is True
    assert facts["warnings"] == ()


def test_the_chosen_map_is_named(eeg):
    facts = fit(eeg, map="auto", divergence="ot").provenance
    assert facts["map"] in ("diagonal", "affine")
    assert facts["adapter"]["map"] == "auto"


def test_the_same_fit_gives_the_same_bytes(tmp_path):
    code = (
        "from condokit import *\n"
        "kernel = lambda a, b: (a[:, None] == b[None]).all(axis=-1) * 1.0\n"
        "df = datasets.make_eeg(random_state=0).to_frame()\n"
        "adapter = ConDoAdapter(reference='v1', map=LocationScale(), random_state=0,\n"
        "    categorical=['seizure', 'depression'], divergence='reverse-kl',\n"
        "    prior=ProductPrior(kernel=kernel), conditional=KernelSmoother(kernel=kernel))\n"
        "adapter.fit(df, domain='device', confounders=['seizure', 'depression'],\n"
        "    features=['eeg_*'])\n"
        "adapter.map_.save('{}')\n"
    )
    for name in ("one", "two"):
        environment = {**os.environ, "PYTHONHASHSEED": str(len(name) + ord(name[0]))}
        script = code.format(tmp_path / name)
        subprocess.run([sys.executable, "-W", "ignore", "-c", script], env=environment, check=True)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert "0x" not in str(json.loads((tmp_path / "one").read_text())["provenance"])


def test_no_small_count_and_no_value_of_a_subject_is_in_the_file(rng):
    n = 100
    X = rng.normal(size=(2 * n, 2))
    z = np.where(np.arange(2 * n) % 3 == 0, "a", "b").astype(object)
    z[:2] = "Jane Doe"  # query only
    with pytest.warns(UserWarning, match="compared: .*rare.*2 query") as seen:
        affine = ConDoAdapter().fit_pair(X[:n], X[n:], z[:n], z[n:]).map_
    assert not any("Jane" in str(warning.message) for warning in seen)
    text = json.dumps(affine.provenance)
    assert affine.provenance["rows"] == {"query": "~100", "reference": 100}
    assert "occur in one domain only" in text
    assert "Jane" not in text
    assert "2 query" not in text


def test_warnings_are_noted_even_if_they_are_not_shown(rng, recwarn):
    import warnings

    X, z = rng.normal(size=(40, 1)), np.repeat(["a", "b"], 20)
    z[:3] = "b"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        affine = ConDoAdapter(min_overlap=0).fit_pair(X[:20], X[20:], z[:20], z[20:]).map_
    notes = affine.provenance["warnings"]
    assert any(note.startswith("LowOverlapWarning") for note in notes)
    assert affine.provenance["rows"]["query"] == "<5"
    assert any("<5 of the query rows" in note for note in notes)
    assert not any(
        f"{n} of the" in note or f"{n} query" in note for n in range(1, 5) for note in notes
    )


def test_provenance_is_kept_and_cannot_be_changed(eeg):
    affine = fit(eeg)
    for other in (clone(affine), pickle.loads(pickle.dumps(affine)), copy.deepcopy(affine)):
        assert other.provenance == affine.provenance
        for change in (
            lambda facts: facts.update(a=1),
            lambda facts: facts.__setitem__("a", 1),
            lambda facts: facts["overlap"].clear(),
            lambda facts: facts["rows"].pop("query"),
        ):
            with pytest.raises(TypeError, match="immutable"):
                change(other.provenance)
    more = affine.with_origin(
        affine.fitted_on, {**affine.provenance, "command": ["condokit", "fit"]}
    )
    assert more.provenance["command"] == ("condokit", "fit")
    assert affine.with_origin(None).provenance is None


def test_strange_settings_do_not_stop_a_fit(rng):
    X = rng.normal(size=(30, 2))
    big = ConDoAdapter(random_state=10**30, map=LocationScale(links={1: 1.0})).fit_pair(
        np.abs(X[:15]), np.abs(X[15:])
    )
    assert big.map_.provenance["adapter"]["random_state"] == str(10**30)
    assert big.map_.provenance["adapter"]["map"] == "LocationScale(links={1: 1.0})"


@pytest.mark.parametrize(
    "wrong",
    [
        3,
        {1: "a"},
        {"a": np.zeros(3)},
        {"a": float("nan")},
        {"a": 10**30},
        {"warnings": "none"},
        {"standard_errors": 1},
        {"a": [[[[[[[1]]]]]]]},
        {"a": "x" * 200_000},
        {"a": list(range(200_000))},
    ],
)
def test_provenance_is_plain(wrong):
    with pytest.raises(ValueError, match="provenance"):
        AffineMap([1.0], [0.0], provenance=wrong)


def test_fingerprints_tell_data_apart_but_not_containers(eeg):
    import polars

    def prints(frame, confounders=("seizure",)):
        roles = [frame, "device", list(confounders), ["eeg_*"], None, None, "v1", None, "raise"]
        return fingerprint(from_table(*roles))

    found = prints(eeg)
    assert prints(polars.from_pandas(eeg)) == found
    query, reference = (eeg[eeg["device"] == label] for label in ("v2", "v1"))
    names = [name for name in eeg.columns if name.startswith("eeg_")]
    sides = [side[names] for side in (query, reference)]
    Z = [side[["seizure"]] for side in (query, reference)]
    assert fingerprint(from_pair(*sides, *Z, None, None, None, "raise")) == found
    changed = eeg.copy()
    changed.loc[eeg.index[eeg["device"] == "v2"][5], names[0]] += 1e-12
    assert prints(changed)["query"] != found["query"]
    assert prints(changed)["reference"] == found["reference"]
    assert prints(eeg, ["depression"])["query"] != found["query"]
    changed = eeg.assign(seizure=~eeg["seizure"])
    assert prints(changed)["query"] != found["query"]
    assert prints(eeg.iloc[::-1]) != found


# hostile files


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "no JSON"),
        (b"\xef\xbb\xbf{}", "no JSON"),
        (b'{"format": "condokit-map", "format": "condokit-map"}', "occurs twice"),
        (b'{"a": NaN}', "finite numbers"),
        (b'{"a": -Infinity}', "finite numbers"),
        (b'{"a": ' + b"9" * 5000 + b"}", "finite numbers"),
        (b'{"a":' * 100_000, "no JSON"),
        (b"[" * 10_000_000, "no JSON"),
        ("{}".encode("utf-16"), "cannot be read"),
        (b'"' + b"\xc3\x28" + b'"', "cannot be read"),
        (b"null", "not a map"),
        (b'{"format": "condokit-map", "schema": true}', "'schema' is True"),
        (b'{"format": "condokit-map", "schema": 1.0}', "'schema' is 1.0"),
    ],
)
def test_texts_that_are_no_map(tmp_path, text, message):
    path = tmp_path / "map.json"
    path.write_bytes(text)
    start = time.perf_counter()
    with pytest.raises(MapFileError, match=message) as caught:
        AffineMap.load(path)
    assert time.perf_counter() - start < 2
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("diagonal", {"left": [[1.0]] * 3}, "'left' does not belong to this kind"),
        ("low-rank", {"kind": "diagonal"}, "'left' does not belong to this kind"),
        ("low-rank", {"left": [[1.0]] * 2}, "numbers of the shape 3 x 1. Got 2 x 1"),
        ("dense", {"kind": "diagonal"}, "'scale' must be numbers"),
        (
            "dense",
            {"scale": [[1.0, 2.0, 3.0], [1.0], [1.0]]},
            "must be numbers of the shape 3 x features",
        ),
        ("dense", {"scale": [[], [], []]}, "'scale' must be numbers of the shape 3 x features"),
        ("diagonal", {"scale": [], "offset": []}, "must be numbers of the shape features. Got .."),
        ("diagonal", {"scale": [1.0, 1e999, 1.0]}, "finite numbers. Got inf"),
        ("diagonal", {"links": "log"}, "'links' must be a list. Got 'log'"),
        ("diagonal", {"links": {"a": "log"}}, "'links' must be a list"),
        (
            "diagonal",
            {"links": ["log"]},
            "'links' must be a list of 3, the number of features. Got 1",
        ),
        (
            "links",
            {"links": ["log", True, None]},
            r"'links\[1\]' must be text or a finite number or null",
        ),
        ("links", {"links": ["log", -1, None]}, "must be above 0. Got -1"),
        ("links", {"links": ["log", 10**290, None]}, None),
        ("links", {"links": ["log", [], None]}, "must be text or a finite number or null"),
        ("diagonal", {"output_names": "xyz"}, "'output_names' must be a list"),
        ("diagonal", {"output_names": ["x", "y", 3]}, r"'output_names\[2\]' must be text. Got 3"),
        ("diagonal", {"condokit": 3}, "'condokit' must be text. Got 3"),
        ("diagonal", {"provenance": []}, "'provenance' must be an object"),
        ("diagonal", {"provenance": {"a": 10**100}}, "finite numbers"),
        ("diagonal", {"provenance": {"a": [[[[[[[[]]]]]]]]}}, "too deeply nested"),
        ("diagonal", {"fitted_on": None}, "'fitted_on' must be an object. Got None"),
        ("diagonal", {"feature_names": ["a", "b", "\ud800" * 10**6]}, "is no character"),
    ],
)
def test_contents_that_are_no_map(tmp_path, kind, change, message):
    path = tmp_path / "map.json"
    make(kind).save(path)
    write_document(path, {**json.loads(path.read_text()), **change})
    if message is None:
        assert AffineMap.load(path)
        return
    with pytest.raises(MapFileError, match=message) as caught:
        AffineMap.load(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("mean", [1.0, 1.0, 1e999]),
        ("mean", [1.0, 1.0, 10**299]),
        ("sd", [1.0, 1.0, -1.0]),
        ("missing", [0.0, 0.0]),
        ("low", "abc"),
        ("n_rows", 10**200),
        ("n_rows", True),
    ],
)
def test_profiles_that_are_none(tmp_path, key, value):
    path = tmp_path / "map.json"
    make("diagonal").save(path)
    document = json.loads(path.read_text())
    document["fitted_on"][key] = value
    write_document(path, document)
    if value == [1.0, 1.0, 10**299]:  # large, but a number
        assert AffineMap.load(path).fitted_on.mean[2] == 1e299
        return
    with pytest.raises(MapFileError, match=f"'fitted_on.{key}' must be"):
        AffineMap.load(path)


def test_things_that_are_no_files(tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "loop", tmp_path / "pipe", "/dev/zero", "a\0b"):
        with pytest.raises(MapFileError, match="cannot be read as a map"):
            AffineMap.load(path)


def test_huge_files_are_refused_before_they_are_read(tmp_path, monkeypatch):
    path = tmp_path / "map.json"
    with path.open("wb") as file:
        file.truncate(documents.MOST_BYTES + 1)  # a hole
    with pytest.raises(MapFileError, match="more than .* bytes"):
        AffineMap.load(path)
    monkeypatch.setattr(documents, "MOST_VALUES", 1000)
    path.write_text("[" + "0," * 2000 + "0]")
    with pytest.raises(MapFileError, match="more than 1000 values"):
        AffineMap.load(path)
    with pytest.raises(ValueError, match="too large for a file"):
        AffineMap(np.ones(2000), np.ones(2000)).save(path)


def load_or_refuse(path):
    """Return the map, or None if it is refused as it should be: in one line, by a MapFileError."""
    try:
        return AffineMap.load(path)
    except MapFileError as error:
        message = str(error)
    assert "\n" not in message
    return None


def test_a_thousand_damaged_files_load_to_the_same_map_or_not_at_all(tmp_path):
    chance = random.Random(0)
    path = tmp_path / "map.json"
    originals = []
    for kind in KINDS:
        make(kind).save(path)
        originals.append((make(kind), path.read_bytes()))
    refused = 0
    for _ in range(1000):
        affine, text = chance.choice(originals)
        path.write_bytes(mutated_bytes(text, chance))
        start = time.perf_counter()
        found = load_or_refuse(path)
        assert time.perf_counter() - start < 1
        refused += found is None
        assert found is None or found == affine
    assert refused > 900


@pytest.mark.parametrize("shape", [(22_283,), (300, 300)])
def test_large_maps_are_saved_and_loaded_quickly(tmp_path, shape, rng):
    path, names = tmp_path / "map.json", [f"gene {j}" for j in range(shape[0])]
    affine = AffineMap(rng.normal(size=shape), rng.normal(size=shape[0]), names)
    start = time.perf_counter()
    affine.save(path)
    assert AffineMap.load(path) == affine
    assert time.perf_counter() - start < 5


def test_open_files_are_read_and_written(eeg):
    import io

    affine, content = fit(eeg), io.BytesIO()
    affine.save(content)
    content.seek(0)
    assert AffineMap.load(content) == affine
    with pytest.raises(MapFileError, match="^The map is not a map"):
        AffineMap.load(io.BytesIO(b"{}"))


def test_reading_and_applying_a_map_needs_no_scikit_learn(tmp_path):
    """It takes longer to import than all else together."""
    AffineMap([2.0], [1.0], ["a"]).save(path := tmp_path / "map.json")
    code = f"import sys, numpy, condokit; condokit.load_map({str(path)!r})(numpy.ones((2, 1)));"
    code += "print([name for name in ('sklearn', 'scipy.stats', 'pandas') if name in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "[]\n"


@pytest.mark.parametrize("container", ["pandas", "polars"])
def test_containers_that_scikit_learn_is_set_to(container):
    one, X = AffineMap([2.0], [1.0], ["a"]), pd.DataFrame({"a": [1.0, np.nan]}, index=[5, 7])
    kind = {"pandas": pd.DataFrame, "polars": pl.DataFrame}[container]
    pipeline = make_pipeline(clone(one)).set_output(transform=container)
    with config_context(transform_output=container):
        found = one.transform(X.to_numpy()), one.fit_transform(X), pipeline.transform(X)
    for mapped in found:
        assert isinstance(mapped, kind)
        assert np.asarray(mapped)[0, 0] == 3.0
    if container == "pandas":
        assert list(found[1].index) == [5, 7]
    assert isinstance(one.transform(X.to_numpy()), np.ndarray)
    with pytest.raises(ValueError, match="'default', 'pandas' or 'polars'"):
        one.set_output(transform="excel")
