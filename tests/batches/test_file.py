"""Files of many maps: written, read, and refused if somebody forged them."""

import copy
import io
import json

import numpy as np
import pytest
from batches_made import Made
from stories import run

from condokit import BatchAdapter, MapFileError, load_map
from condokit.batches.record import BatchFacts, with_errors
from condokit.io.documents import digest
from condokit.report.contents import tidy


@pytest.fixture(scope="module")
def made():
    return Made(1, [(0, 1), (1, 2), (2, 3)], p=3)


@pytest.fixture(scope="module")
def document(made):
    roles = {"batch": "site", "confounders": ["group"], "features": made.features}
    return saved(BatchAdapter(reference="A").fit(made.table, **roles))


def saved(adapter):
    file = io.BytesIO()
    adapter.save(file)
    return json.loads(file.getvalue())


def loaded(document):
    document = {**document, "sha256": digest(document)}
    return BatchAdapter.load(io.BytesIO(json.dumps(document).encode()))


def without(content, key):
    return {k: v for k, v in content.items() if k != key}


def first(change):
    """Return a change of the first batch."""

    def changed(document):
        one, *others = document["batches"]
        return {"batches": [change(one), *others]}

    return changed


def facts(change):
    """Return a change of what is told of the second batch."""

    def changed(document):
        told = copy.deepcopy(document["provenance"])
        told["batches"][1] = change(told["batches"][1])
        return {"provenance": told}

    return changed


FORGED = {
    "no kind": (first(lambda one: without(one, "kind")), r"'batches\[0\].kind' is missing"),
    "kind": (first(lambda one: {**one, "kind": "odd"}), "must be one of 'diagonal', .* Got 'odd'"),
    "nested": (
        lambda document: {"batches": [{**document, "label": "A"}]},
        "must be one of 'diagonal', .* Got 'batches'",
    ),
    "label": (first(lambda one: {**one, "label": ["A"]}), "'batches.0..label' must be text or"),
    "null": (first(lambda one: {**one, "label": None}), "label' must be text or .* Got None"),
    "twice": (first(lambda one: {**one, "label": "B"}), "has the label 'B', as another batch"),
    "numbers": (
        lambda document: {
            "batches": [{**one, "label": k} for one, k in zip(document["batches"], (True, 1, 2))]
        },
        "has the label 1, as another batch",
    ),
    "names": (
        first(lambda one: {**one, "feature_names": one["feature_names"][::-1]}),
        "other 'feature_names' than the file, or in another order",
    ),
    "short": (
        first(lambda one: {**one, "scale": [1.0], "offset": [0.0], "feature_names": None}),
        r"'batches\[0\].fitted_on.mean' must be numbers of the shape 1. Got 3",
    ),
    "wide": (
        first(lambda one: {**one, "kind": "dense", "scale": [[1.0] * 3], "offset": [0.0]}),
        r"'batches\[0\]' maps 3 features to 1, not 3",
    ),
    "knots": (
        first(
            lambda one: (
                without(without({**one, "kind": "monotone"}, "scale"), "offset")
                | {"knots": [[0, 0]] * 3, "values": [[0, 1]] * 3, "slopes": [[1, 1]] * 3}
            )
        ),
        r"'batches\[0\]' holds no map: 'knots' must increase",
    ),
    "empty": (lambda _: {"batches": []}, "'batches' must be a list of 1 or more"),
    "claim": (lambda _: {"n_features": 10**9}, "maps 3 features to 3, not 1000000000"),
    "columns": (lambda _: {"columns": [0, 1, 3]}, "'columns' must be different places among 3"),
    "place": (lambda _: {"columns": [-1]}, r"'columns\[0\]' must be at least 0"),
    "reference": (lambda _: {"reference": "Z"}, "'reference' is 'Z', which is no batch"),
    "list": (lambda _: {"reference": ["A"]}, "'reference' must be text or"),
    "no path": (facts(lambda one: without(one, "path")), r"'provenance.batches\[1\].path' is mis"),
    "odd path": (facts(lambda one: {**one, "path": [["B"]]}), r"path\[0\]' must be text or"),
    "astray": (
        facts(lambda one: {**one, "path": ["B", "Z"]}),
        "has no path from 'B' to the others",
    ),
    "circle": (facts(lambda one: {**one, "path": ["B", "B"]}), "has no path from 'B'"),
    "stranger": (facts(lambda one: {**one, "label": "Z"}), "has no path from 'Z'"),
    "rows": (facts(lambda one: {**one, "rows": {}}), "rows' must be text or a finite number"),
    "error": (facts(lambda one: {**one, "error_after": "x"}), "error_after' must be a finite"),
    "lost": (
        lambda document: {"provenance": {**document["provenance"], "unreachable": ["Z"]}},
        "'provenance.unreachable' names what is no batch",
    ),
}


@pytest.mark.parametrize("name", FORGED)
def test_forged_files_are_refused_by_name(document, name, tmp_path, capsys):
    change, message = FORGED[name]
    forged = {**document, **change(document)}
    with pytest.raises(MapFileError, match=message) as caught:
        loaded(forged)
    assert "\n" not in str(caught.value)
    path = tmp_path / "maps.json"
    path.write_text(json.dumps({**forged, "sha256": digest(forged)}))
    (tmp_path / "in.csv").write_text("f0,f1,f2,site\n1,2,3,A\n")
    for arguments in (
        ["show", path],
        ["apply", path, tmp_path / "in.csv", "-o", tmp_path / "o.csv"],
    ):
        capsys.readouterr()
        assert run(*arguments) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (tmp_path / "o.csv").exists()


@pytest.mark.parametrize("key", ["n_features", "reference", "batches", "kind", "feature_names"])
def test_fields_that_are_missing_are_named(document, key):
    with pytest.raises(MapFileError, match=f"'{key}' is missing"):
        loaded(without(document, key))


def test_features_by_place_are_as_many_as_their_columns(made):
    group = made.table["group"].to_numpy()
    adapter = BatchAdapter(reference=0).fit(
        made.X, batch=made.code, confounders=group, features=[0, 2]
    )
    content = saved(adapter)
    assert (content["n_features"], content["columns"]) == (3, [0, 2])
    again = loaded(content)
    np.testing.assert_array_equal(
        again.transform(made.X, batch=made.code), adapter.transform(made.X, batch=made.code)
    )
    std = again.transform(made.X[:3], batch=np.zeros(3, dtype=int), return_std=True)[1]
    np.testing.assert_array_equal(std, np.zeros((3, 2)))  # of the reference
    wide = loaded({**content, "n_features": 10**9})  # no memory is taken for other columns
    assert wide.get_feature_names_out().tolist() == ["x0", "x2"]
    assert again.get_feature_names_out().tolist() == adapter.get_feature_names_out().tolist()


def test_load_map_says_how_many_maps_are_read(document):
    text = json.dumps({**document, "sha256": digest(document)}).encode()
    with pytest.raises(MapFileError, match="Read it with condokit.BatchAdapter.load"):
        load_map(io.BytesIO(text))


def test_an_error_is_told_alike_in_sentence_report_and_file():
    error = 0.7649850160247013  # 0.76, and 0.77 after rounding to four digits
    facts = BatchFacts(60, ["B", "A"], 0.86, 0, np.nan, np.nan)
    in_file = with_errors(facts, (error, error)).error_before
    row = {"error_before": error, "error_before_interval": [error, 1.2149], "before_low": error}
    on_page = tidy({**row, "of_features": {"error_before": [error] * 3}})
    shown = [in_file, on_page["error_before"], on_page["before_low"]]
    shown += on_page["error_before_interval"][:1]
    assert [f"{value:.2f}" for value in shown] == [f"{error:.2f}"] * 4
    assert on_page["of_features"]["error_before"] == [0.765] * 3  # columns stay short
