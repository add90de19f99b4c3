"""Statistics with continuous confounders: maps as from rows, files that tell of no few rows."""

import io
import json

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from condokit import BatchAdapter, ConDoAdapter, FileError, Statistics
from condokit.data.basis import RangeBasis
from condokit.data.continuous import Continuous, _coarse
from condokit.io.documents import digest

FEATURES = [f"f{j}" for j in range(4)]
ROLES = {"features": FEATURES, "confounders": ["age", "sex"]}
RANGE = {"ranges": {"age": (18, 95)}}
SCALE, SHIFT = np.array([1.0, 1.5, 0.8]), np.array([0.0, 1.0, -1.0])


def hospitals(seed=0, n=5000, n_sites=3, bent=True, tails=False):
    """Return a table of hospitals, of which A is the reference."""
    rng = np.random.default_rng(seed)
    site, sex = rng.integers(0, n_sites, n), rng.integers(0, 2, n)
    age = np.clip(rng.normal(50 + 4 * site, 14, n), 18.5, 94.5)
    t = (age - 50) / 14
    x = rng.normal(size=(2, 4))[sex] + np.outer(t**2 if bent else t, rng.uniform(0.5, 1.5, 4))
    e = 2 * rng.standard_t(3, x.shape) if tails else rng.normal(size=x.shape)
    x += np.exp(0.3 * sex)[:, None] * e
    frame = pd.DataFrame(x / SCALE[site][:, None] + SHIFT[site][:, None], columns=FEATURES)
    frame["age"], frame["sex"] = age, np.array(["F", "M"])[sex]
    frame["hospital"] = np.array(list("ABC"))[site]
    return frame


def away(found, rows):
    """Return how far maps are apart, in standard errors."""
    one, other, e = found.map_, rows.map_, rows.errors_
    at = e.centre
    apart = one.scale * at + one.offset - other.scale * at - other.offset
    return np.abs([(one.scale - other.scale) / e.of_scale, apart / e.of_image])


def of_parts(frame, n_parts=1, **given):
    """Gather statistics of chunks, in an order of their own, and merge them."""
    frame = frame.sample(frac=1.0, random_state=n_parts)
    chunks = np.array_split(np.arange(len(frame)), n_parts)
    found = [
        Statistics.of(frame.iloc[rows], domain="hospital", **ROLES, **(RANGE | given))
        for rows in chunks
    ]
    while len(found) > 1:
        found = [found[-1].merge(found[0]), *found[1:-1]]
    return found[0]


@pytest.mark.parametrize("bent", [False, True])
def test_maps_are_those_of_rows(bent):
    frame = hospitals(n_sites=2, bent=bent)
    rows = ConDoAdapter(reference="A").fit(frame, domain="hospital", **ROLES)
    found = ConDoAdapter(reference="A").fit_statistics(of_parts(frame))
    assert away(found, rows).max() < (0.1 if bent else 0.01)
    assert found.report_["mean_terms"] == (["curve 0"] if bent else [])
    assert found.overlap_.coefficient == pytest.approx(rows.overlap_.coefficient, abs=0.05)
    assert found.overlap_.by_confounder["age"] < found.overlap_.by_confounder["sex"]


@pytest.mark.parametrize("n_parts", [2, 13])
def test_neither_chunks_nor_their_order_matter(n_parts):
    frame = hospitals(n_sites=2)
    frame.loc[frame.index % 7 == 0, "f1"] = np.nan
    adapter = ConDoAdapter(reference="A", shrinkage=None)  # whose steps end where little changes
    one, other = (clone(adapter).fit_statistics(of_parts(frame, n)) for n in (1, n_parts))
    np.testing.assert_allclose(one.map_.scale, other.map_.scale, rtol=1e-9)
    np.testing.assert_allclose(one.map_.offset, other.map_.offset, atol=1e-9)


@pytest.mark.parametrize("gaps", [False, True])
def test_three_hospitals_send_files_alone(tmp_path, gaps):
    frame = hospitals()
    if gaps:
        frame.loc[np.random.default_rng(0).random(len(frame)) < 0.2, "f1"] = np.nan
    rows = BatchAdapter(reference="A").fit(frame, batch="hospital", **ROLES)
    files = []
    for name, own in frame.groupby("hospital"):
        files.append(tmp_path / f"{name}.json")
        Statistics.of(own, label=name, **ROLES, **RANGE).save(files[-1])
    found = BatchAdapter(reference="A").fit_statistics([Statistics.load(f) for f in files[::-1]])
    for name, scale in zip("BC", SCALE[1:]):
        one, other, e = found.maps_[name], rows.maps_[name], rows.errors_[name]
        assert (np.abs(one.scale - other.scale) < 0.4 * e.of_scale).all()
        assert (np.abs(one.offset - other.offset) < 0.4 * e.of_image).all()
        assert (np.abs(one.scale - scale) < 4 * e.of_scale).all()
        np.testing.assert_allclose(found.errors_[name].of_scale, e.of_scale, rtol=0.1)


def test_heavy_tails_take_a_second_round(tmp_path):
    frame = hospitals(n_sites=2, tails=True)
    frame.loc[frame.index % 5 == 0, "f1"] = np.nan
    rows = ConDoAdapter(reference="A").fit(frame, domain="hospital", **ROLES)
    with pytest.warns(UserWarning, match="Heavy tails, fitted as if they were normal"):
        first = ConDoAdapter(reference="A").fit_statistics(of_parts(frame))
    of_parts(frame, given=first).save(tmp_path / "round2.json")
    second = ConDoAdapter(reference="A").fit_statistics(Statistics.load(tmp_path / "round2.json"))
    assert away(first, rows).max() > 1
    assert away(second, rows).max() < 0.3
    assert np.median(away(second, rows)) < 0.1
    np.testing.assert_allclose(second.errors_.of_scale, rows.errors_.of_scale, rtol=0.1)


def test_heavy_tails_of_many_hospitals_take_a_second_round():
    frame = hospitals(tails=True)
    rows = BatchAdapter(reference="A").fit(frame, batch="hospital", **ROLES)
    with pytest.warns(UserWarning, match="Heavy tails, fitted as if they were normal"):
        first = BatchAdapter(reference="A").fit_statistics(of_parts(frame))
    second = BatchAdapter(reference="A").fit_statistics(of_parts(frame, given=first))
    for name in "BC":
        scale, e = rows.maps_[name].scale, rows.errors_[name].of_scale
        one, two = (np.abs(fit.maps_[name].scale - scale) / e for fit in (first, second))
        assert one.max() > 1
        assert two.max() < 0.3


def test_a_file_tells_of_no_cell_with_fewer_rows_than_sums(tmp_path):
    frame = hospitals(n=1200, n_sites=2)
    few = frame[frame.hospital == "B"].index[:4]
    frame.loc[few, "sex"] = "X"
    stats = of_parts(frame)
    stats.save(tmp_path / "a.json")
    document = json.loads((tmp_path / "a.json").read_text())
    assert document["fewest_rows"] == 5
    again = Statistics.load(tmp_path / "a.json")
    assert ("B", "X") in stats.cells
    assert ("B", "X") not in again.cells
    masked = frame[frame.sex != "X"]
    one = ConDoAdapter(reference="A").fit_statistics(again)
    other = ConDoAdapter(reference="A").fit_statistics(of_parts(masked))
    assert away(one, other).max() < 0.4


def test_the_few_rows_that_lack_a_feature_stay_hidden(tmp_path):
    frame = hospitals(n=1200, n_sites=2)
    gone = frame[(frame.hospital == "B") & (frame.sex == "F")].index[:2]
    frame.loc[gone, "f2"] = np.nan
    stats = of_parts(frame)
    stats.save(tmp_path / "a.json")
    products = Statistics.load(tmp_path / "a.json").sums.continuous.products
    r, own = products.n_columns, products.own[2]
    cell = list(Statistics.load(tmp_path / "a.json").cells).index(("B", "F"))
    assert own.count[cell] == products.count[cell] - 2
    np.testing.assert_array_equal(own.mean[cell, :r], products.mean[cell, :r])
    share = own.count[cell] / products.count[cell]
    np.testing.assert_allclose(
        own.scatter[cell, :, :r], share * products.scatter[cell, :, :r], rtol=0.02, atol=0.5
    )
    found = ConDoAdapter(reference="A").fit_statistics(Statistics.load(tmp_path / "a.json"))
    rows = ConDoAdapter(reference="A").fit_statistics(stats)
    assert away(found, rows).max() < 0.4


def test_bins_of_few_rows_join_their_neighbours():
    counts = np.array([0, 1, 2, 9, 5, 0, 0, 3.0])
    found = _coarse(counts, 5)
    np.testing.assert_allclose(found, [3, 3, 3, 3, 2, 2, 2, 2])
    np.testing.assert_allclose(_coarse(np.array([1.0, 0, 1]), 5), [2 / 3] * 3)
    rng = np.random.default_rng(0)
    for counts in rng.poisson(2, (50, 20)).astype(float):
        coarse = _coarse(counts, 5)
        edges = np.flatnonzero(np.diff(coarse)) + 1
        assert coarse.sum() == pytest.approx(counts.sum())
        assert min(part.sum() for part in np.split(coarse, edges)) >= 5 - 1e-9


def test_bad_input_is_refused_by_name(tmp_path):
    frame = hospitals(n=800, n_sites=2)
    stats = of_parts(frame)
    with pytest.raises(ValueError, match=r"'age' is continuous from 18 to 95 .* from 0 to 99"):
        stats.merge(of_parts(frame, ranges={"age": (0, 99)}))
    old = frame.assign(age=frame.age + 40)
    before = stats.n_rows
    with pytest.raises(ValueError, match=r"values of 'age' .* outside its declared range 18 to 95"):
        stats.update(old)
    assert stats.n_rows == before
    with pytest.raises(ValueError, match="'age' is continuous"):
        ConDoAdapter(reference="A", divergence="reverse-kl").fit_statistics(stats)
    stats.save(tmp_path / "a.json")
    document = json.loads((tmp_path / "a.json").read_text())
    document["continuous"]["level"] -= 1
    (tmp_path / "a.json").write_text(json.dumps({**document, "sha256": digest(document)}))
    with pytest.raises(FileError, match="do not fit"):
        Statistics.load(tmp_path / "a.json")
    part = Continuous(stats.sums.continuous.basis, 1, 4)
    other = type(part.basis)(("age",), ((18.0, 95.0),), 9)
    with pytest.raises(ValueError, match="functions of continuous confounders differ"):
        part.merge(Continuous(other, 1, 4))


@pytest.mark.parametrize("n_knots", [7, 10])
def test_functions_of_a_range_have_the_same_signs_on_every_machine(monkeypatch, n_knots):
    ages = np.linspace(18, 95, 9)[:, None]
    found = RangeBasis(("age",), ((18.0, 95.0),), n_knots)(ages)
    plain = np.linalg.eigh

    def turned(matrix):
        value, vector = plain(matrix)
        return value, vector * np.resize([-1, 1, 1], len(value))

    monkeypatch.setattr(np.linalg, "eigh", turned)
    again = RangeBasis(("age",), ((18.0, 95.0),), n_knots)(ages)
    np.testing.assert_allclose(again, found, atol=1e-9)
    if n_knots == 10:  # files hold sums of these: they must never change
        frozen = [1.0, 0.1238, -0.6212, -0.3891, 1.1007]
        np.testing.assert_allclose(found[-3, :5] / found[-3, 0], frozen, atol=1e-4)


def test_missing_values_and_weights_do_not_make_slopes_absurd():
    """Groups of all rows and of those that know a feature differ; their products are not mixed."""
    for seed in (0, 6, 7):  # 77, 152 and 294 standard errors off when they were mixed
        rng, parts = np.random.default_rng(seed), []
        for k, label in enumerate("AB"):
            age = np.clip(rng.normal(52 + 8 * k, 14, 300), 18.5, 94.5)
            bent = (age - 50) / 20 + 0.3 * ((age - 50) / 20) ** 2
            table = pd.DataFrame({"hb": (1 + 0.3 * k) * (bent + rng.normal(size=300)) + k})
            table["sex"] = rng.choice(["F", "M"], 300, p=[0.4, 0.6])
            table["na"], table["age"] = rng.normal(size=300), age
            table.loc[rng.random(300) < 0.1, "hb"] = np.nan
            parts.append(table.assign(site=label, w=rng.gamma(3, 1 / 3, 300)))
        how = {"confounders": ["sex", "age"], "features": ["hb", "na"], "sample_weight": "w"}
        read = []
        for part in parts:
            place = io.BytesIO()
            stats = Statistics.of(
                part.drop(columns="site"),
                label=part["site"].iloc[0],
                ranges={"age": (18, 95)},
                **how,
            )
            with pytest.warns(UserWarning, match="'hb' depends on 'age' is roughly known"):
                stats.save(place)
            place.seek(0)
            read.append(Statistics.load(place))
        both = pd.concat(parts, ignore_index=True)
        found = BatchAdapter(reference="A").fit_statistics(read).maps_["B"]
        rows = BatchAdapter(reference="A").fit(both, batch="site", **how)
        at = np.array([[1.0, 0.0]])
        away = abs(found(at) - rows.maps_["B"](at)) / rows.errors_["B"].std(at)
        assert away.max() < 2
