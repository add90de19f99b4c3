"""The record is complete and plain; the page is self-contained, small, safe and repeatable."""

import json
import re
from functools import cache

import numpy as np
import pytest
from reading import from_pair, from_table
from stories import HOSTILE, built, read, report, table

import condokit
from condokit import ConDoAdapter, LocationScale, bootstrap, evaluate
from condokit.checks import naming
from condokit.cli.outputs import as_option
from condokit.report import build, render
from condokit.report.render import breakable, number


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
    assert small["uncertainty"]["strongest"] == "sick"
    assert min(features["hidden_10"]) > 0
    assert max(features["hidden_like"]) > 0


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
    assert "Off at most (sd), if a confounder was missed" in static
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
    # nor may all patients less the others be the three
    side = {s["stratum"]: s["before"] for s in found["densities"][0]["strata"]}
    assert [name for name, curve in side.items() if curve is None] == ["sick = no", "sick = rare"]
    drawn = {one["label"] for one in found["pictures"]["components"][1]["ellipses"]["before"]}
    assert drawn == {"no", "yes", "rare"}  # of both data sets together these are nine
    assert "&lt; 5" in page
    assert 'class="before hidden"' in page


@pytest.mark.filterwarnings("ignore")
def test_no_ellipse_is_all_rows_less_the_others():
    frame = table(3)
    frame["sick"] = np.where(np.arange(len(frame)) % 90 < 2, "rare", frame["sick"].map(str))
    drawn = report(frame)["pictures"]["components"][1]["ellipses"]["before"]
    assert len(drawn) == 1


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
    assert len(json.dumps(found["features"])) < 320 * 3000
    assert len(json.dumps(found)) < 1.5e6
    assert render(found).count("<tr>") < 150


@cache
def report_of(map):
    """The report of four features mapped so; no test changes it."""
    return report(table(4), map)


@pytest.mark.parametrize("map", ["affine", "low-rank", "shift", "auto"])
def test_every_kind_of_map_has_a_page(map):
    found = report_of(map)
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
    assert found["batches"][-1]["evaluation"] is None
    assert "Not evaluated" in render(found)


def test_continuous_confounders_no_confounders_and_arrays(rng):
    age = rng.uniform(20, 80, 200)
    X = rng.normal(size=(200, 2)) + age[:, None] / 20
    domain = np.repeat(["query", "reference"], 100)
    for confounders in ({"age": age}, None):
        domains = from_table(X, domain, confounders, None, None, None, None, None, "raise")
        page = render(built(ConDoAdapter().fit_domains(domains), domains))
        assert ("<bdi>age</bdi>" in page) == (confounders is not None)
        assert "Query made comparable with reference" in page


def test_resampled_errors_are_used():
    frame = table(3)
    domains = read(frame)
    adapter = ConDoAdapter(reference="old").fit_domains(domains)
    before = built(adapter, domains)["features"]
    errors = bootstrap(adapter, frame, domain="domain", confounders=["sick"], n_resamples=20)
    found = built(adapter, domains)
    places = [errors.features["feature"].index(n) for n in found["features"]["feature"]]
    scale, se = (np.array(errors.features[name])[places] for name in ("scale", "scale_se"))
    np.testing.assert_allclose(found["features"]["scale_low"], scale - 1.96 * se, rtol=1e-3)
    assert found["features"]["scale_low"] != before["scale_low"]
    assert "from refits where these were asked for" in render(found)


def test_inputs_are_told_without_their_folders():
    found = report(table(2), inputs={"/home/ann/t.csv": "0" * 64})
    assert found["reproduce"]["inputs"] == {"t.csv": "0" * 64}


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
    found, page = small["batches"][-1]["evaluation"], render(small)
    expected = min(1, 2 * min(found["p_features"], found["p_joint"]))
    assert found["p_value"] == pytest.approx(expected, rel=1e-3)
    assert "twice the smaller p-value of two tests" in page
    assert "whose cause was not recorded" in page
    assert 0 < small["uncertainty"]["strength_one_error"] < 0.2
    assert "An unrecorded confounder that explains" in page


@pytest.mark.parametrize("links", [None, {"x0": "log"}])
def test_the_change_at_the_mean_is_in_the_unit_of_the_feature(links):
    frame = table(3)
    frame[["x0", "x1", "x2"]] += 20
    domains = read(frame)
    adapter = ConDoAdapter(LocationScale(links=links), reference="old").fit_domains(domains)
    features = built(adapter, domains)["features"]
    mean = frame.loc[frame["domain"] == "new", ["x0", "x1", "x2"]].mean()
    image, error = adapter.transform(mean.to_frame().T, return_std=True)
    for k, name in enumerate(features["feature"]):
        change = image[name].item() - mean[name]
        assert features["mean"][k] == pytest.approx(mean[name], rel=1e-5)
        assert features["change"][k] == pytest.approx(change, rel=1e-4)
        low, high = features["change_low"][k], features["change_high"][k]
        assert (low + high) / 2 == pytest.approx(change, rel=1e-3)
        assert (high - low) / 2 == pytest.approx(1.96 * error[name].item(), rel=0.01)


@pytest.mark.filterwarnings("ignore")
def test_rows_left_out_are_told_with_the_reason():
    frame = table(3)
    frame["sick"] = frame["sick"].map({True: "yes", False: "no"})
    frame.loc[:6, "sick"] = None  # seven new rows
    frame.loc[[170, 171], "sick"] = None  # two old rows
    frame.loc[10:15, "sick"] = "only new"
    frame.loc[20:25, ["x0", "x1", "x2"]] = np.nan
    frame.loc[30:37, "x0"] = np.nan
    how = "domain", ["sick"], None, None, None, "old", None, "drop"
    domains = from_table(frame, *how)
    for map, n_reasons in (("location-scale", 3), ("affine", 4)):
        adapter = ConDoAdapter(map, divergence="ot", reference="old", missing="drop")
        found = built(adapter.fit_domains(domains), domains)
        left = {row["because"]: [*row.values()][1:] for row in found["compared"]["left_out"]}
        assert left["no value of any feature"] == [6, 0]
        assert left["no value of 'sick'"] == [7, "<5"]
        alone = left["confounder values in one data set only: 'only new'"]
        assert alone == [6, 0]
        assert len(left) == n_reasons
        page = render(found)
        assert "No value of any feature" in page
        assert "No value of &#39;sick&#39;" in page
    assert left.popitem()[1] == [8, 0]


def test_parameters_are_those_that_were_used(small):
    used = small["reproduce"]["parameters"]
    assert used["divergence"] == "likelihood"
    assert used["conditional"] is None  # this divergence needs none
    assert used["categorical"] == ["sick"]
    assert used["random_state"] == 0
    assert re.fullmatch(r"auto: \d+% of the estimated shifts and \d+% .* kept", used["shrinkage"])
    auto = report_of("auto")["reproduce"]["parameters"]
    assert auto["map"] == "auto: diagonal"
    assert auto["shrinkage"].startswith("auto: ")
    assert "auto" not in {v for v in {**used, **auto}.values() if isinstance(v, str)}


def paragraph(page):
    return re.search(r'id="paragraph"[^>]*>(.*?)</p>', page, re.DOTALL).group(1)


def test_there_is_a_paragraph_for_the_methods_section(small):
    text = paragraph(render(small))
    versions = small["reproduce"]["versions"]
    assert f"condokit {condokit.__version__}" in text
    for package, key in (("NumPy", "numpy"), ("SciPy", "scipy"), ("scikit-learn",) * 2):
        assert f"{package} {versions[key]}" in text
    assert "5 features in new (the query, n = 90)" in text
    assert "old (the reference, n = 90)" in text
    assert "a scale and an offset of its own" in text
    assert "maximum likelihood" in text
    assert "given sick (categorical)" in text
    assert "<" not in text.replace("&lt;", "")
    page = render(small)
    assert "Towards Backwards-Compatible Data with Confounded Domain Adaptation." in page


@pytest.mark.parametrize(
    ("map", "words"),
    [
        ("affine", "weighted sum of all features plus an offset, found by minimising the Gaussian"),
        ("shift", "an offset of its own, found by maximum likelihood"),
        ("monotone", "an increasing curve of its own, as far as evidence bends it from a straight"),
        ("auto", "(a scale and an offset of its own|averaged with weights from how well they)"),
    ],
)
def test_the_paragraph_names_the_map(map, words):
    assert re.search(words, paragraph(render(report_of(map))))


@pytest.mark.filterwarnings("ignore:Not taken as features")
def test_the_report_speaks_as_its_reader_does():
    frame = table(3).assign(code=np.arange(180))
    domains = read(frame)
    python = built(ConDoAdapter(reference="old").fit_domains(domains), domains)
    with naming(as_option):
        adapter = ConDoAdapter(reference="old").fit_domains(domains)
        typed = built(adapter, domains, command="condokit report t.csv")
    advice = [[f["advice"] for f in r["findings"] if "code" in f["text"]] for r in (python, typed)]
    assert "`features`" in advice[0][0]
    assert "--features" in advice[1][0]
    assert python["reproduce"]["options"]["random_state"] == "random_state"
    assert typed["reproduce"]["options"]["random_state"] == "--seed"
    assert "--bootstrap" in render(typed)
    assert "--bootstrap" not in render(python)


def test_names_may_be_broken_between_their_parts():
    assert breakable("lh_a.b<c") == "lh_<wbr>a.<wbr>b&lt;c"
    assert breakable("dotEnd.") == "dot<wbr>End."


@pytest.mark.parametrize(("n", "is_known"), [(30, False), (200, True)])
def test_no_share_is_told_of_a_difference_that_is_mostly_noise(n, is_known):
    domains = read(table(1, n=n))
    adapter = ConDoAdapter(reference="old").fit_domains(domains)
    evaluation = evaluate(adapter, domains, domain=None, n_permutations=39)
    assert None not in evaluation.features["kept"]
    record = build(adapter, domains, evaluation=evaluation)
    assert [share is not None for share in record["features"]["kept"]] == [is_known]
    assert ("kept" in record["batches"][1]["evaluation"]["versions"]) == is_known
    page = render(record)
    assert ("Real differences kept" in page) == is_known
    assert "Principal components" not in page  # of one feature
    assert "All 1 feature" not in page
