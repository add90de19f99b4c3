"""The record is complete and plain; the page is self-contained, small, safe and repeatable."""

import json
import re

import numpy as np
import pytest
from stories import HOSTILE, read, report, table

from condokit import ConDoAdapter, bootstrap
from condokit.data.roles import from_pair, from_table
from condokit.report import build, render
from condokit.report.render import number
from condokit.trust.evaluate import evaluate


@pytest.fixture(scope="module")
def small():
    return report(table(5), command="condokit report t.csv", inputs={"t.csv": "0" * 64})


def embedded(page):
    return json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL).group(1))


def test_the_record_is_complete_and_json(small):
    assert json.loads(json.dumps(small, allow_nan=False)) == small
    assert small["verdict"]["level"] in ("good", "care", "poor")
    assert small["compared"]["query"] == "new"
    assert small["compared"]["confounders"] == ["sick"]
    features = small["features"]
    assert {len(column) for column in features.values()} == {5}
    low, scale, high = (np.array(features[f"scale{k}"]) for k in ("_low", "", "_high"))
    assert (low < scale).all()
    assert (scale < high).all()
    assert [d["feature"] for d in small["densities"]] == features["feature"]
    assert small["reproduce"]["command"] == "condokit report t.csv"
    assert small["reproduce"]["parameters"]["map"] == "location-scale"


def test_a_page_can_be_made_from_saved_json_and_is_the_same(small):
    assert render(json.loads(json.dumps(small))) == render(small)
    assert render(
        report(table(5), command="condokit report t.csv", inputs={"t.csv": "0" * 64})
    ) == (render(small))


def test_the_page_says_everything_without_a_script(small):
    page = render(small)
    static = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    for text in (small["verdict"]["sentence"], small["verdict"]["word"], "condokit report t.csv"):
        assert text in static
    for finding in small["findings"]:
        assert finding["text"].split("(")[0].replace("'", "&#39;") in static
    for name in small["features"]["feature"]:
        assert f"<bdi>{name}</bdi>" in static
    levels = [int(h) for h in re.findall(r"<h(\d)", static)]
    assert levels[0] == 1
    assert all(b - a <= 1 for a, b in zip(levels, levels[1:]))


def test_the_page_asks_nobody(small):
    page = render(small)
    addresses = set(re.findall(r"(?:https?:)?//[\w.]+", page))
    assert addresses <= {"http://www.w3.org"}  # the name of SVG, which is not fetched
    assert not re.search(r"@import|url\(|<link(?! rel=\"icon\" href=\"data:,\")|\bsrc=", page)
    assert "default-src 'none'" in page


def test_hostile_names_stay_text():
    page = render(report(table(len(HOSTILE), HOSTILE)))
    page.encode("utf-8")
    assert "<img" not in page
    assert "<!--" not in page
    assert page.count("</script>") == 2
    assert "{{ 7 * 7 }}" in page
    names = embedded(page)["features"]["feature"]
    assert sorted(names) == sorted(HOSTILE)


def test_labels_and_commands_are_escaped_too():
    frame = table(2).replace({"domain": {"new": "<b>new</b>"}})
    page = render(report(frame, command="<i>run</i>", inputs={"<u>\ud800": "</td>"}))
    page.encode("utf-8")
    for tag in ("<b>new", "<i>run", "<u>"):
        assert tag not in page


@pytest.mark.filterwarnings("ignore")
def test_small_cells_are_not_shown():
    frame = table(3)
    rare = np.zeros(len(frame), dtype=bool)
    rare[[0, 1, 2, 170, 171, 172, 173, 174, 175]] = True  # three new, six old
    frame = frame.assign(sick=np.where(rare, "rare", np.where(frame["sick"], "yes", "no")))
    found = report(frame)
    strata = found["assessment"]["strata"]
    k = strata["rows with"].index("sick = rare")
    assert strata["n_query"][k] == "<5"
    for density in found["densities"]:
        cell = next(s for s in density["strata"] if s["stratum"] == "sick = rare")
        assert cell["before"] is None
        assert cell["after"] is None
        assert cell["reference"] is not None
    page = render(found)
    assert "&lt; 5" in page
    assert 'class="before hidden"' in page


@pytest.mark.filterwarnings("ignore")
def test_totals_do_not_tell_the_size_of_small_cells():
    frame = table(3)
    frame["sick"] = frame["sick"].map({True: "yes", False: "no"})
    frame.loc[[0, 1, 2], "sick"] = "only new"  # three of 90 rows
    found = report(frame)
    assert found["compared"]["n_query"] == 90
    assert found["compared"]["rows_query"] == "~85"
    assert not found["assessment"]["overlap"]["outside"].get("sick")
    assert found["assessment"]["confounders"]["outside"] == [None]
    assert "87" not in re.findall(
        r"\b\d+\b(?!%)", json.dumps({**found, "densities": 0, "features": 0})
    )
    assert "≈ 85" in render(found)


def test_a_hundred_features_fit_into_three_megabytes():
    frame = table(100, n=30)
    frame["sick"] = np.arange(len(frame)) % 6  # many strata, many curves
    frame["sick"] = "s" + frame["sick"].astype(str)
    page = render(report(frame))
    assert len(page.encode()) < 3e6
    assert len(embedded(page)["densities"]) == 100


def test_very_many_features_stay_small_and_the_most_shifted_have_pictures():
    frame = table(3000, n=12)
    found = report(frame)
    assert len(found["densities"]) == 100
    assert [d["feature"] for d in found["densities"]] == found["features"]["feature"][:100]
    assert len(json.dumps(found["features"])) < 150 * 3000
    assert len(json.dumps(found)) < 1.5e6
    assert render(found).count("<tr>") < 150


@pytest.mark.parametrize("map", ["affine", "low-rank", "shift", "auto"])
def test_every_kind_of_map_has_a_page(map):
    found = report(table(4), map)
    page = render(found)
    if map in ("affine", "low-rank"):
        assert found["map"]["condition"] >= 1
        assert "Largest entries" in page
        own = dict(zip(found["features"]["feature"], found["features"]["own"]))
        assert own["x0"] == pytest.approx(1 / 1.5, abs=0.3)


def test_a_map_between_different_features_has_a_page(rng):
    domains = from_pair(
        rng.normal(size=(60, 3)), rng.normal(size=(60, 2)), None, None, None, None, None, "raise",
        any_features=True,
    )  # fmt: skip
    adapter = ConDoAdapter("affine", divergence="mmd").fit_domains(domains)
    found = build(adapter, domains)
    assert found["evaluation"] is None
    assert "Not evaluated" in render(found)


def test_continuous_confounders_no_confounders_and_arrays(rng):
    age = rng.uniform(20, 80, 200)
    X = rng.normal(size=(200, 2)) + age[:, None] / 20
    domain = np.repeat(["query", "reference"], 100)
    for confounders in ({"age": age}, None):
        domains = from_table(X, domain, confounders, None, None, None, None, None, "raise")
        adapter = ConDoAdapter().fit_domains(domains)
        evaluation = evaluate(adapter, domains, domain=None, n_permutations=39)
        page = render(build(adapter, domains, evaluation=evaluation))
        assert ("<bdi>age</bdi>" in page) == (confounders is not None)
        assert "Query made comparable with reference" in page


def test_resampled_errors_are_used():
    frame = table(3)
    domains = read(frame)
    adapter = ConDoAdapter(reference="old").fit_domains(domains)
    errors = bootstrap(adapter, frame, domain="domain", confounders=["sick"], n_resamples=30)
    evaluation = evaluate(adapter, domains, domain=None, n_permutations=39)
    found = build(adapter, domains, evaluation=evaluation, uncertainty=errors)
    places = [errors.features["feature"].index(n) for n in found["features"]["feature"]]
    expected = np.array(errors.features["scale_low"])[places]
    np.testing.assert_allclose(found["features"]["scale_low"], expected, rtol=1e-3)
    assert "30 sets of resampled rows" in render(found)


def test_inputs_may_be_paths(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("")
    found = report(table(2), inputs=[path])
    assert found["reproduce"]["inputs"]["t.csv"].startswith("e3b0c44298fc1c14")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"), (0.0, "0"), (1, "1"), (-0.5, "−0.500"), (0.01234, "0.012"), (12.345, "12.3"),
        (1234.5, "1,234"), (2e9, "2.0e9"), (3e-7, "3.0e−7"), ("x", "x"),
    ],
)  # fmt: skip
def test_numbers_read_well(value, text):
    assert number(value) == text


def test_the_page_gives_one_p_value_for_both_tests_and_its_limits(small):
    found, page = small["evaluation"], render(small)
    expected = min(1, 2 * min(found["p_features"], found["p_joint"]))
    assert found["p_value"] == pytest.approx(expected, rel=1e-3)
    assert "twice the smaller p-value of two tests" in page
    assert "whose cause was not recorded" in page
    assert 0 < small["uncertainty"]["strength_one_error"] < 0.2
    assert "An unrecorded confounder that explains" in page
