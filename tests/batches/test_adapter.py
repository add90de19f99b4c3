import json
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import sklearn
from sklearn.base import clone
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline

from condokit import (
    BatchAdapter,
    ConDoAdapter,
    GaussianOT,
    LocationScale,
    MapFileError,
    NoOverlapError,
    Statistics,
    assess,
    bootstrap,
    load_map,
)
from condokit.paper import ConDo

ROLES = {"batch": "site", "confounders": "group"}


@pytest.fixture
def fitted(study):
    return BatchAdapter(reference="A").fit(study.table, features="f*", **ROLES)


def test_every_batch_gets_its_map(study, fitted):
    mapped = fitted.transform(study.table, batch="site")
    assert list(mapped) == study.features
    assert study.error(mapped) < 0.35 * study.error(study.X)
    same = study.table["site"] == "A"
    np.testing.assert_array_equal(mapped[same], study.X[same])
    assert list(fitted.maps_) == list("ABCDE")
    assert fitted.reference_ == "A"
    one = fitted.maps_["C"](study.table[study.table["site"] == "C"])
    pd.testing.assert_frame_equal(one, mapped[study.table["site"] == "C"])
    back = fitted.inverse_transform(mapped, batch=study.table["site"])
    np.testing.assert_allclose(back, study.X, atol=1e-12)


def test_two_batches_are_what_one_adapter_finds(study):
    two = study.table[study.table["site"].isin(["A", "B"])].query("group != 'g2'")
    both = BatchAdapter(reference="A").fit(two, features="f*", **ROLES)
    one = ConDoAdapter(reference="A").fit(two, domain="site", confounders="group", features="f*")
    assert not both.report_.joint
    np.testing.assert_array_equal(both.maps_["B"].scale, one.map_.scale)
    np.testing.assert_array_equal(both.maps_["B"].offset, one.map_.offset)


@pytest.mark.parametrize("age", [0.0, 1.0])
def test_together_beats_pairs_where_batches_are_small(made, age):
    together, pairs = [], []
    for seed in range(3):
        study = made(seed, [(0, 1), (0, 0, 1), (0, 1, 1)] * 3 + [(0, 1)], n=20, age=age)
        roles = {"batch": "site", "confounders": ["group", "years"] if age else "group"}
        for joint, errors in ((True, together), (False, pairs)):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                adapter = BatchAdapter(reference="A", joint=joint)
                adapter.fit(study.table, features="f*", **roles)
            errors.append(study.error(adapter.transform(study.table, batch="site")))
    assert np.mean(together) < 0.95 * np.mean(pairs)


def test_a_chain_is_followed_and_its_errors_grow(chain):
    adapter = BatchAdapter(reference="A").fit(chain.table, features="f*", **ROLES)
    assert adapter.paths_["D"] == ["D", "C", "B", "A"]
    after = [adapter.report_.batches[label].error_after for label in "ABCD"]
    assert after == sorted(after)
    assert after[0] == 0
    mapped = adapter.transform(chain.table, batch="site")
    assert chain.error(mapped) < 0.5 * chain.error(chain.X)
    edges = {edge["batches"]: edge for edge in adapter.graph_}
    assert edges["A", "B"]["comparable"]
    assert not edges["A", "C"]["comparable"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pairs = BatchAdapter(reference="A", joint=False).fit(chain.table, features="f*", **ROLES)
    assert chain.error(mapped) < chain.error(pairs.transform(chain.table, batch="site"))
    _, std = pairs.transform(chain.table, batch="site", return_std=True)
    spread = std.groupby(chain.table["site"]).mean().mean(axis=1)
    assert (np.diff(spread) > 0).all()


def test_intervals_along_chains_hold(made):
    covered = []
    for seed in range(12):
        study = made(seed, [(0, 1), (1, 2), (2, 3), (3, 4)], n=80)
        adapter = BatchAdapter(reference="A").fit(study.table, features="f*", **ROLES)
        mapped, std = adapter.transform(study.table, batch="site", return_std=True)
        inside = np.abs(mapped.to_numpy() - study.truth) <= 1.96 * std.to_numpy()
        covered.append([inside[study.code == k].mean() for k in (1, 2, 3)])
    assert (np.abs(np.mean(covered, axis=0) - 0.95) < 0.035).all()


def test_islands_are_refused_by_name_or_left_alone(made):
    study = made(0, [(0, 1), (0, 1), (2, 3), (2, 3)])
    with pytest.raises(NoOverlapError, match=r"from 'C', 'D' to the reference.*plan"):
        BatchAdapter(reference="A").fit(study.table, features="f*", **ROLES)
    keep = BatchAdapter(reference="A", unreachable="keep")
    with pytest.warns(UserWarning, match="left as they are"):
        keep.fit(study.table, features="f*", **ROLES)
    mapped = keep.transform(study.table, batch="site").to_numpy()
    np.testing.assert_array_equal(mapped[study.code >= 2], study.X[study.code >= 2])
    assert keep.report_.unreachable == ["C", "D"]
    assert "left as it is" in str(keep.report_)


def test_islands_with_numbers_for_labels_are_known_after_load(tmp_path, made):
    study = made(0, [(0, 1), (0, 1), (2,), (0, 1)])
    table = study.table.assign(site=study.code)
    keep = BatchAdapter(reference=0, unreachable="keep")
    with pytest.warns(UserWarning, match="left as they are"):
        keep.fit(table[table["site"] < 3], features="f*", **ROLES)
    keep.save(tmp_path / "maps.json")
    loaded = BatchAdapter.load(tmp_path / "maps.json").add_batch(table, **ROLES)
    assert loaded.report_.unreachable == [2]
    assert loaded.maps_[3] == keep.add_batch(table, **ROLES).maps_[3]


def with_controls(study, n, seed=0, noise=0.3):
    """Return the table with n controls of batch A measured in all others, and a bridge column."""
    rng, parts = np.random.default_rng(seed), [study.table.assign(control=None)]
    rows = np.flatnonzero(study.code == 0)[:n]
    parts[0].loc[rows, "control"] = [f"s{k}" for k in range(n)]
    for k in range(1, len(study.labels)):
        x = study.truth[rows] + noise * rng.normal(size=(n, study.X.shape[1]))
        part = pd.DataFrame((x - study.offset[k]) / study.scale[k], columns=study.features)
        known = {"site": study.labels[k], "group": None, "years": 0.0}
        parts.append(part.assign(**known, control=[f"s{k}" for k in range(n)]))
    return pd.concat(parts, ignore_index=True)


def bridged(seed, missing=0.0, n_batches=3, n=40):
    """Twenty samples measured in every batch, others in one, some values missing."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=(n, 4))
    parts = [truth * (1 + 0.2 * k) + k for k in range(n_batches)]
    X = np.vstack(parts) + 0.05 * rng.normal(size=(n * n_batches, 4))
    X[rng.random(X.shape) < missing] = np.nan
    sample = [f"s{i}" if i < n // 2 else None for i in range(n)] * n_batches
    return X, np.repeat(list("ABCD"[:n_batches]), n), np.array(sample, dtype=object)


def test_bridges_alone_tell_each_feature_by_its_known_values():
    X, batch, sample = bridged(0, missing=0.2)
    X[:10, 1] = X[50:60, 1] = np.nan  # no sample has it in A and in B, but all in C
    adapter = BatchAdapter(reference="A").fit(X, batch=batch, bridge=sample)
    for k, name in enumerate("BC", 1):
        np.testing.assert_allclose(adapter.maps_[name].scale, 1 / (1 + 0.2 * k), rtol=0.15)
        np.testing.assert_allclose(adapter.maps_[name].offset, -k / (1 + 0.2 * k), atol=0.15)
    mapped = adapter.transform(X, batch=batch)
    np.testing.assert_array_equal(np.isnan(mapped), np.isnan(X))
    shorter = X.copy()
    shorter[(sample == None) & (np.arange(len(X)) % 2 == 0)] = np.nan  # noqa: E711
    other = BatchAdapter(reference="A").fit(shorter, batch=batch, bridge=sample)
    np.testing.assert_allclose(other.maps_["B"].scale, adapter.maps_["B"].scale, rtol=1e-12)


def test_features_that_bridges_do_not_tell_are_named():
    X, batch, sample = bridged(0, n_batches=2)
    lost = X.copy()
    lost[40:60, 1] = np.nan  # known in B in other rows alone
    apart = X.copy()
    apart[:10, 1] = apart[50:60, 1] = np.nan  # known of ten samples in A, of others in B
    few = X.copy()
    few[42:60, 1] = np.nan
    for given in (lost, apart, few):
        with pytest.raises(
            ValueError, match="do not determine the map of 'column 1' in the batch 'B': fewer than"
        ):
            BatchAdapter(reference="A").fit(given, batch=batch, bridge=sample)
        rest = BatchAdapter(reference="A").fit(given[:, [0, 2]], batch=batch, bridge=sample)
        assert np.isfinite(rest.maps_["B"].scale).all()
        assert assess(given, batch=batch, bridge=sample, reference="A").verdict == "not possible"
        assert assess(given[:, [0, 2]], batch=batch, bridge=sample, reference="A").verdict == "go"
    two = [name if name in sample[:2] else None for name in sample]  # and no value is missing
    with pytest.raises(ValueError, match="A shift alone needs 2: map='shift'"):
        BatchAdapter(reference="A").fit(X, batch=batch, bridge=two)
    assert assess(X, batch=batch, bridge=two, reference="A").verdict == "not possible"
    shift = BatchAdapter(ConDoAdapter("shift"), reference="A")  # has no scale to learn
    assert np.isfinite(shift.fit(few, batch=batch, bridge=sample).maps_["B"].offset).all()


def test_bridges_reach_what_strata_do_not(made):
    study = made(0, [(0,), (1,), (2,)])
    table = with_controls(study, 8)
    adapter = BatchAdapter(reference="A")
    adapter.fit(table, features="f*", bridge="control", **ROLES)
    assert study.error(adapter.transform(study.table, batch="site")) < 0.4
    assert all(edge["bridges"] == 8 for edge in adapter.graph_)
    empty = adapter.fit(table.fillna({"control": ""}), features="f*", bridge="control", **ROLES)
    assert [edge["bridges"] for edge in empty.graph_] == [8, 8, 8]
    # without confounders bridges are all there is: the groups of other rows do not matter
    alone = BatchAdapter(reference="A").fit(table, batch="site", features="f*", bridge="control")
    assert study.error(alone.transform(study.table, batch="site")) < 0.5
    with pytest.raises(NoOverlapError):
        BatchAdapter(reference="A").fit(study.table, features="f*", **ROLES)
    table["control"] = np.arange(len(table))
    with pytest.raises(ValueError, match="No value of 'bridge' occurs in two batches"):
        alone.fit(table, batch="site", features="f*", bridge="control")
    table["control"] = table.index % 7 == 0  # marks rows, but is no name of a sample
    table["group"] = [f"g{k % 3}" for k in range(len(table))]
    with pytest.warns(UserWarning, match="2 of 2 samples in 'bridge' have different conf"):
        adapter.fit(table, features="f*", bridge="control", **ROLES)


def test_a_new_batch_leaves_other_maps_as_they_are(tmp_path, chain):
    old = chain.table[chain.table["site"] != "D"]
    adapter = BatchAdapter(reference="A").fit(old, features="f*", **ROLES)
    adapter.save(tmp_path / "maps.json")
    before = {label: one.to_dict() for label, one in adapter.maps_.items()}
    new = chain.table[chain.table["site"].isin(["C", "D"])]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapter.add_batch(new, **ROLES)
        loaded = BatchAdapter.load(tmp_path / "maps.json").add_batch(new, **ROLES)
    for label, content in before.items():
        assert adapter.maps_[label].to_dict() == content
        assert loaded.maps_[label].to_dict() == content
    assert loaded.maps_["D"] == adapter.maps_["D"]
    assert adapter.paths_["D"] == ["D", "C", "B", "A"]
    batches = adapter.report_.batches
    assert batches["D"].error_after > batches["C"].error_after
    mapped, error = adapter.transform(chain.table, batch="site", return_std=True)
    inside = error.to_numpy() * 1.96 > np.abs(mapped.to_numpy() - chain.truth)
    assert inside[chain.code == 3].mean() > 0.9  # the error of C counts, too
    _, kept = loaded.transform(chain.table, batch="site", return_std=True)
    np.testing.assert_allclose(kept, error, rtol=0.05)
    assert chain.error(mapped, [3]) < 0.7 * chain.error(chain.X, [3])
    adapter.save(tmp_path / "more.json")
    again = BatchAdapter.load(tmp_path / "more.json")
    assert again.maps_["D"] == adapter.maps_["D"]
    assert again.report_.batches["D"].path == ["D", "C", "B", "A"]
    with pytest.raises(ValueError, match="one label that is new.*New: none"):
        adapter.add_batch(new, **ROLES)


@pytest.mark.filterwarnings("ignore::condokit.checks.LowOverlapWarning")  # a level is not in E
def test_the_expected_error_of_a_new_batch_is_that_of_a_refit(study):
    old = study.table[study.table["site"] != "E"]
    adapter, again = BatchAdapter(reference="A"), BatchAdapter(reference="A")
    adapter.fit(old, features="f*", **ROLES).add_batch(study.table, **ROLES)
    again.fit(study.table, features="f*", **ROLES)
    found, refit = (one.report_.batches["E"].error_after for one in (adapter, again))
    assert found == pytest.approx(refit, rel=0.2)
    mapped, error = adapter.transform(study.table, batch="site", return_std=True)
    new = study.code == 4
    inside = np.abs(mapped.to_numpy() - study.truth)[new] < 1.96 * error.to_numpy()[new]
    assert 0.85 < inside.mean() < 0.99


@pytest.mark.parametrize("confounder", ["group", "age"])
def test_two_batches_are_pulled_as_two_domains_are(confounder):
    rng = np.random.default_rng(0)
    age = rng.normal(size=230)
    group = np.where(rng.normal(size=230) + age > 0, "u", "v")
    Z = group if confounder == "group" else age
    x = np.outer(age if confounder == "age" else group == "u", rng.normal(size=6))
    x = x + rng.normal(size=(230, 6))
    site = np.repeat(["query", "reference"], [80, 150])
    x[:80] = (x[:80] - 0.5 * rng.normal(size=6)) / np.exp(0.2 * rng.normal(size=6))
    one = ConDoAdapter().fit_pair(x[:80], x[80:], Z[:80], Z[80:])
    many = BatchAdapter(reference="reference", joint=True).fit(x, batch=site, confounders=Z)
    np.testing.assert_allclose(many.maps_["query"].scale, one.map_.scale, atol=0.01)
    moved = many.transform(x, batch=site)[:80] - one.transform(x[:80])
    assert np.abs(moved).max() < 0.03
    assert many.report_.facts["differs"] == pytest.approx(
        [one.report_.chance_of_difference], abs=0.01
    )


def test_the_file_is_readable_and_complete(tmp_path, study, fitted):
    path = tmp_path / "maps.json"
    fitted.save(path)
    content = json.loads(path.read_text())
    assert [one["label"] for one in content["batches"]] == list("ABCDE")
    assert content["reference"] == "A"
    loaded = BatchAdapter.load(path)
    expected = fitted.transform(study.table, batch="site")
    pd.testing.assert_frame_equal(loaded.transform(study.table, batch="site"), expected)
    assert loaded.report_.batches["B"].error_after == pytest.approx(
        fitted.report_.batches["B"].error_after, abs=1e-4
    )
    path.write_text(path.read_text().replace('"label": "B"', '"label": "A"'))
    with pytest.raises(MapFileError):
        BatchAdapter.load(path)
    fitted.maps_["B"].save(path)
    with pytest.raises(MapFileError, match="no BatchAdapter"):
        BatchAdapter.load(path)


def test_a_file_of_maps_is_no_single_map(tmp_path, fitted):
    fitted.save(tmp_path / "maps.json")
    with pytest.raises(MapFileError, match="'batches'"):
        load_map(tmp_path / "maps.json")


def test_labels_may_be_numbers(tmp_path, study):
    numbers = study.code + 1
    adapter = BatchAdapter(reference=1)
    adapter.fit(study.X, batch=numbers, confounders=study.table["group"])
    adapter.save(tmp_path / "maps.json")
    loaded = BatchAdapter.load(tmp_path / "maps.json")
    np.testing.assert_array_equal(
        loaded.transform(study.X, batch=numbers), adapter.transform(study.X, batch=numbers)
    )
    assert loaded.paths_ == adapter.paths_
    bootstrap(loaded, study.X, batch=numbers, confounders=study.table["group"], n_resamples=20)
    error = loaded.transform(study.X, batch=numbers, return_std=True)[1]
    assert (error[study.code > 0] > 0).all()
    assert not error[study.code == 0].any()
    with pytest.raises(
        ValueError, match="'1', '2'.*for which there is no map. There are maps for 1, 2"
    ):
        adapter.transform(study.X, batch=numbers.astype(str))


@pytest.mark.parametrize("container", [pl.from_pandas, pa.Table.from_pandas])
def test_any_frame(study, fitted, container):
    table = container(study.table)
    adapter = BatchAdapter(reference="A").fit(table, features="f*", **ROLES)
    mapped = adapter.transform(table, batch="site")
    assert type(mapped) is type(table)
    expected = fitted.transform(study.table, batch="site")
    values = np.column_stack([np.asarray(mapped[name]) for name in study.features])
    np.testing.assert_array_equal(values, expected)


def test_in_a_pipeline_with_routed_batches(study):
    with sklearn.config_context(enable_metadata_routing=True):
        adapter = BatchAdapter(reference="A").set_fit_request(batch=True, confounders=True)
        adapter.set_transform_request(batch=True)
        pipe = make_pipeline(adapter, Ridge())
        roles = {"batch": study.table["site"], "confounders": study.table["group"]}
        pipe.fit(study.X, study.truth[:, 0], **roles)
        assert pipe.predict(study.X, batch=roles["batch"]).shape == (len(study.X),)
    again = clone(adapter)
    assert again.get_params()["reference"] == "A"
    framed = clone(adapter).set_output(transform="pandas")
    assert isinstance(framed.fit_transform(study.X, **roles), pd.DataFrame)


def test_the_reference_can_be_chosen_or_the_centre(chain):
    best = BatchAdapter(reference="auto").fit(chain.table, features="f*", **ROLES)
    assert best.reference_ in ("B", "C")
    assert "best paths" in best.report_.why
    centre = BatchAdapter(reference="consensus").fit(chain.table, features="f*", **ROLES)
    assert centre.reference_ == "consensus"
    logs = np.log([one.scale for one in centre.maps_.values()])
    np.testing.assert_allclose(logs.mean(axis=0), 0.0, atol=1e-9)
    mapped = centre.transform(chain.table, batch="site").to_numpy()
    np.testing.assert_allclose(mapped.mean(axis=0), chain.X.mean(axis=0), atol=1e-9)
    # maps differ from those to a reference by one map for all
    other = best.transform(chain.table, batch="site").to_numpy()
    for x, y in zip(mapped.T, other.T):
        assert np.corrcoef(x, y)[0, 1] > 1 - 1e-9
    with pytest.raises(ValueError, match="must name the batch to map to"):
        BatchAdapter().fit(chain.table, features="f*", **ROLES)


def test_errors_cover_where_values_are_missing(made):
    cover = []
    for seed in range(4):
        study = made(seed, [(0, 1, 2)] * 4, age=1.0)
        table, rng = study.table.copy(), np.random.default_rng(seed)
        table[study.features] = study.X * np.where(rng.random(study.X.shape) < 0.25, np.nan, 1.0)
        roles = {"batch": "site", "confounders": ["group", "years"]}
        adapter = BatchAdapter(reference="A").fit(table, features="f*", **roles)
        mapped, std = adapter.transform(study.table, batch="site", return_std=True)
        rows = study.code > 0
        away = np.abs(np.asarray(mapped) - study.truth)[rows]
        cover.append(np.mean(away < 1.96 * np.asarray(std)[rows]))
    assert 0.9 < np.mean(cover) < 0.995


def test_errors_to_the_centre_hold_in_all_batches(made):
    covered = []
    for seed in range(12):
        study = made(seed, [(0, 1, 2), (0, 0, 1), (1, 2, 2), (0, 2, 2)])
        adapter = BatchAdapter(reference="consensus").fit(study.table, features="f*", **ROLES)
        found, error = adapter.transform(study.table, batch="site", return_std=True)
        middle = np.stack([study.X[study.code == b].mean(0) for b in range(4)])
        a = np.exp(-np.log(study.scale).mean(0))
        c = (middle - a * (study.scale * middle + study.offset)).mean(0)
        inside = np.abs(found - (a * study.truth + c)) < 1.96 * error
        covered.append(inside.groupby(study.code).mean().mean(axis=1))
    assert (np.abs(np.mean(covered, axis=0) - 0.95) < 0.035).all()  # of the one in between, too


def test_missing_values_and_features_that_a_batch_lacks(made):
    study = made(0, [(0, 1)] * 3, n=150)
    table = study.table.copy()
    rng = np.random.default_rng(0)
    table.loc[rng.random(len(table)) < 0.3, "f0"] = np.nan
    adapter = BatchAdapter(reference="A").fit(table, features="f*", **ROLES)
    mapped = adapter.transform(table, batch="site")
    known = table["f0"].notna() & (study.code > 0)
    left = np.abs(mapped["f0"] - study.truth[:, 0])[known].mean()
    assert left < 0.5 * np.abs(table["f0"] - study.truth[:, 0])[known].mean()
    assert mapped["f0"].isna().equals(table["f0"].isna())
    table.loc[table["site"] == "C", ["f1", "f2"]] = np.nan
    with pytest.raises(ValueError, match="All values of 'f1', 'f2' are missing in the batch 'C'"):
        BatchAdapter(reference="A").fit(table, features="f*", **ROLES)
    table = table.drop(columns="years")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        common = BatchAdapter(reference="A").fit(table, features="common", **ROLES)
    assert list(common.feature_names_in_) == ["f0", *study.features[3:]]


def test_shifts_are_found_where_spreads_differ_with_the_groups(made):
    together, pairs, inside = [], [], []
    for seed in range(4):
        study = made(seed, [(0, 1, 2), (0, 0, 0, 1), (2, 2, 2, 1), (0, 2, 2)], n=100, effect=3.0)
        study.table[study.features] = study.truth - study.offset[study.code]
        for joint, errors in ((True, together), (False, pairs)):
            adapter = BatchAdapter(ConDoAdapter("shift"), reference="A", joint=joint)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                adapter.fit(study.table, features="f*", **ROLES)
            mapped, std = adapter.transform(study.table, batch="site", return_std=True)
            errors.append(study.error(mapped))
            inside.append(
                (abs(mapped - study.truth) <= 1.96 * std)[study.code > 0].to_numpy().mean()
            )
    assert np.mean(together) < np.mean(pairs)
    assert 0.9 < np.mean(inside[::2]) < 0.99


def test_maps_of_other_families(chain):
    shift = BatchAdapter(ConDoAdapter("shift"), reference="A")
    shift.fit(chain.table, features="f*", **ROLES)
    assert shift.report_.joint
    assert all((one.scale == 1).all() for one in shift.maps_.values())
    plain = BatchAdapter(ConDoAdapter(shrinkage=None), reference="A")
    plain.fit(chain.table, features="f*", **ROLES)
    with pytest.raises(ValueError, match="'mmd', which compares two domains"):
        BatchAdapter(ConDoAdapter(divergence="mmd"), reference="A", joint=True).fit(
            chain.table, features="f*", **ROLES
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        matrix = BatchAdapter(ConDoAdapter("affine", divergence="ot"), reference="A")
        matrix.fit(chain.table, features=["f0", "f1"], **ROLES)
    assert matrix.maps_["D"].kind == "dense"
    assert not matrix.report_.joint


def test_features_that_are_mostly_zero_are_multiplied():
    rng = np.random.default_rng(0)  # logarithms of counts, most of which are zero
    site, group = np.repeat(np.arange(4), 250), rng.integers(0, 3, 1000)
    mean = np.array([0.45, 0.5, 0.26, 0.26])[site] * np.exp(0.15 * group - 0.15)
    depth = np.exp(0.3 * rng.normal(size=1000))
    X = np.log1p(rng.poisson((mean * depth)[:, None], (1000, 12)) / depth[:, None])
    adapter = BatchAdapter(reference=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapter.fit(X, batch=site, confounders=group.astype(str))
    scales = np.stack([one.scale for one in adapter.maps_.values()])
    assert (np.stack([one.offset for one in adapter.maps_.values()]) == 0).all()
    truth = [1, 0.45 / 0.5, 0.45 / 0.26, 0.45 / 0.26]  # less, as logarithms of counts bend
    np.testing.assert_allclose(scales.mean(axis=1), truth, atol=0.25)
    assert (scales < 2.1).all()


def test_a_log_link_keeps_values_positive(study):
    from condokit import LocationScale

    table = study.table.copy()
    table[study.features] = np.exp(table[study.features])
    adapter = BatchAdapter(ConDoAdapter(LocationScale(links="log")), reference="A")
    mapped = adapter.fit_transform(table, features="f*", **ROLES)
    assert (mapped.to_numpy() > 0).all()
    assert study.error(np.log(mapped)) < 0.35 * study.error(study.X)


def test_rows_of_a_subject_count_for_less(study):
    table = pd.concat([study.table] * 4, ignore_index=True)
    subject = np.tile(np.arange(len(study.table)), 4)
    many = BatchAdapter(reference="A").fit(table, features="f*", **ROLES)
    few = BatchAdapter(reference="A").fit(table, features="f*", groups=subject, **ROLES)
    once = BatchAdapter(reference="A").fit(study.table, features="f*", **ROLES)
    twice = np.full(len(study.table), 2.5)
    twice = BatchAdapter(reference="A").fit(
        study.table, features="f*", sample_weight=twice, **ROLES
    )
    assert twice.report_.batches["B"].rows == once.report_.batches["B"].rows
    after = [one.report_.batches["B"].error_after for one in (many, few, once)]
    assert after[0] < 0.65 * after[2]
    assert after[1] == pytest.approx(after[2], rel=0.15)


@pytest.mark.parametrize(
    ("changes", "roles", "message"),
    [
        ({}, {"batch": None}, "'batch' is required"),
        ({}, {"batch": "sight"}, "Did you mean 'site'"),
        ({"reference": "Z"}, {}, "'reference' is 'Z', but the batches are 'A', 'B'"),
        ({"unreachable": "no"}, {}, "'unreachable' must be 'raise' or 'keep'"),
        ({"joint": "yes"}, {}, "'joint' must be 'auto'"),
        ({"adapter": 3}, {}, "'adapter'"),
        ({"adapter": ConDoAdapter(reference="A")}, {}, "give it to BatchAdapter"),
        ({"joint": False}, {"bridge": "control"}, "'bridge' needs joint=True"),
    ],
)
def test_bad_settings(study, changes, roles, message):
    table = with_controls(study, 4)
    table["group"] = table["group"].fillna("g0")
    with pytest.raises((ValueError, TypeError), match=message):
        BatchAdapter(**{"reference": "A", **changes}).fit(
            table, **{"features": "f*", **ROLES, **roles}
        )


def test_bad_batches(study, fitted):
    one = study.table[study.table["site"] == "A"]
    with pytest.raises(ValueError, match="only the label 'A'"):
        BatchAdapter(reference="A").fit(one, features="f*", **ROLES)
    single = study.table[(study.table["site"] != "E") | (study.table.index == 299)]
    with pytest.raises(NoOverlapError, match="'E' has fewer than two rows"):
        BatchAdapter(reference="A").fit(single, features="f*", **ROLES)
    strange = study.table.assign(site=study.table["site"].replace("E", "e"))
    with pytest.raises(
        ValueError, match="'e', for which there is no map.*Did you mean 'E'.*add_batch"
    ):
        fitted.transform(strange, batch="site")
    with pytest.raises(ValueError, match="lacks 'f3'"):
        fitted.transform(study.table.drop(columns="f3"), batch="site")
    mixed = np.where(study.code == 0, 0, study.table["site"].astype(object))
    adapter = BatchAdapter(reference=0).fit(study.X, batch=mixed, confounders=study.table["group"])
    assert list(adapter.maps_) == [0, "B", "C", "D", "E"]


def test_inverse_transform_keeps_the_container_after_set_output(study, fitted):
    back = fitted.set_output(transform="polars").inverse_transform(study.table, batch="site")
    assert isinstance(back, pd.DataFrame)


@pytest.mark.filterwarnings("ignore::condokit.LowOverlapWarning")
def test_common_features_of_a_new_batch_are_those_of_the_maps(study):
    known = study.table[study.table["site"] != "E"]
    adapter = BatchAdapter(reference="A").fit(known, features="f*", **ROLES)
    adapter.add_batch(study.table, features="common", **ROLES)
    assert list(adapter.maps_) == list("ABCDE")


def test_warnings_of_statistics_are_noted(study):
    large = study.X * np.where(study.table["site"] == "E", 1e5, 1.0)[:, None]
    statistics = Statistics.of(large, domain=study.table["site"])
    with pytest.warns(UserWarning, match="use the same units"):
        adapter = BatchAdapter(reference="A").fit_statistics(statistics)
    assert any("same units" in text for text in adapter.provenance_["warnings"])
    assert "verbose" not in adapter.provenance_["adapter"]


def test_settings_of_zero_are_kept_by_a_file(tmp_path):
    X, batch = np.random.default_rng(0).normal(size=(60, 1)), np.repeat(["A", "B"], 30)
    one = ConDoAdapter(min_overlap=0.0, warn_overlap=0.0, shrinkage=0.0)
    BatchAdapter(one, reference="A", joint=False).fit(X, batch=batch).save(tmp_path / "maps.json")
    found = BatchAdapter.load(tmp_path / "maps.json").adapter
    assert (found.min_overlap, found.warn_overlap, found.shrinkage) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    "one",
    [
        ConDo(),
        ConDo(published=True),
        ConDo("mmd", "affine", K_X=5, random_state=3),
        ConDoAdapter(divergence="reverse-kl", prior="paper", conditional="kernel"),
        ConDoAdapter(divergence="ot", prior="overlap", shrinkage=None),
        ConDoAdapter(LocationScale({"f1": "log"}), reliability=None),
        ConDoAdapter(reliability={"age": 0.8}, missing="drop"),
    ],
    ids=str,
)
def test_a_batch_is_added_by_the_method_that_the_file_names(one, tmp_path):
    rng = np.random.default_rng(0)
    table = {f"f{j}": np.exp(rng.normal(size=160)) for j in (1, 2)}
    table |= {"site": np.repeat([*"ABCD"], 40), "sex": rng.integers(0, 2, 160).astype(str)}
    table["age"] = rng.normal(50, 10, 160)
    roles = {"batch": "site", "confounders": ["age"] if one.reliability else ["sex"]}
    table = pd.DataFrame(table).assign(f2=lambda t: t["f2"] * (1 + (t["site"] == "D")))
    study, more = table[table["site"] != "D"], table[table["site"].isin([*"AD"])]
    how = {"features": ["f1", "f2"], **roles}
    fitted = BatchAdapter(one, reference="A").fit(study, **how)
    fitted.save(tmp_path / "maps.json")
    loaded = BatchAdapter.load(tmp_path / "maps.json")
    for adapter in (fitted, loaded):
        adapter.add_batch(more, **roles)
    X = more[["f1", "f2"]]
    np.testing.assert_allclose(fitted.maps_["D"](X), loaded.maps_["D"](X), rtol=1e-6)
    other = BatchAdapter(ConDoAdapter(), reference="A").fit(study, **how).add_batch(more, **roles)
    assert not np.allclose(other.maps_["D"](X), loaded.maps_["D"](X), rtol=1e-4)


def test_a_batch_is_not_added_by_another_method_in_silence(tmp_path):
    X, batch = np.random.default_rng(0).normal(size=(90, 1)), np.repeat(["A", "B", "C"], 30)
    one = ConDoAdapter(divergence=GaussianOT(), shrinkage=None)
    BatchAdapter(one, reference="A").fit(X[:60], batch=batch[:60]).save(tmp_path / "maps.json")
    loaded = BatchAdapter.load(tmp_path / "maps.json")
    with pytest.raises(ValueError, match=r"made with divergence=GaussianOT\(\), which a file"):
        loaded.add_batch(X, batch=batch)
    loaded.set_params(adapter=one).add_batch(X, batch=batch)
    others = np.concatenate([X[:30], loaded.maps_["B"](X[30:60])])
    mapped = loaded.maps_["C"](X[60:])
    assert np.allclose(mapped.std(axis=0, ddof=1), others.std(axis=0, ddof=1))
