"""The page of a study: plain, complete, safe, and drawn for two batches as for fifty."""

import json
import re
from html import unescape

import numpy as np
import pandas as pd
import pytest

from condokit import BatchAdapter, FileError
from condokit.report import build, render, save
from condokit.trust.evaluate import evaluate

FEATURES = ["f0", "f1", "f2"]


def table(groups, sizes=40, seed=0, names="ABCDEFGHIJKL"):
    """Return rows of batches, each with the groups that it holds and an offset of its own."""
    rng, parts = np.random.default_rng(seed), []
    sizes = [sizes] * len(groups) if isinstance(sizes, int) else sizes
    for name, held, n in zip(names, groups, sizes):
        group = np.resize(held, n)
        X = rng.normal(size=(n, 3)) + group[:, None] + (len(parts) > 0) * rng.normal(size=3)
        own = pd.DataFrame(X, columns=FEATURES).assign(site=name, group=[f"g{k}" for k in group])
        parts.append(own)
    return pd.concat(parts, ignore_index=True)


def study_of(frame, bridge=None, **settings):
    adapter = BatchAdapter(**{"reference": "A"} | settings)
    study = adapter.read(frame, "site", ["group"], FEATURES, bridge=bridge)
    return adapter.fit_study(study), study


def record_of(frame, bridge=None, **settings):
    adapter, study = study_of(frame, bridge, **settings)
    evaluation = evaluate(adapter, study, n_permutations=39)
    more = {"command": "condokit report <t>.csv", "inputs": {"/home/me/t.csv": "0" * 64}}
    return build(adapter, study, evaluation=evaluation, **more)


def words(page):
    """Return what a reader sees, without tags."""
    body = page[page.index("<body>") :]
    return " ".join(unescape(re.sub(r"<[^>]*>", "", body.replace("<wbr>", ""))).split())


def nodes(page):
    return re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)" r="([\d.]+)" class="node (\w+)"', page)


def best_links(page):
    return page.count('class="link best"')


@pytest.fixture(scope="module")
def chain():
    return record_of(table([(0, 1), (1, 2), (2, 3), (3, 4)]))


def test_the_record_is_plain(chain):
    assert json.loads(json.dumps(chain, allow_nan=False)) == chain
    assert render(json.loads(json.dumps(chain))) == render(chain)
    assert [one["batch"] for one in chain["batches"]] == list("ABCD")
    assert chain["batches"][3]["path"] == ["D", "C", "B", "A"]
    assert [one["rows"] for one in chain["batches"]] == [40] * 4
    assert chain["reference"] == {"label": "A", "why": "A, as asked for"}
    assert chain["confounders"] == {"group": "categorical"}
    assert chain["reproduce"]["inputs"] == {"t.csv": "0" * 64}


def test_figures_are_those_of_the_maps():
    adapter, study = study_of(table([(0, 1), (1, 2), (2, 3)]))
    record = build(adapter, study)
    for one in record["batches"][1:]:
        facts, affine = adapter.report_.batches[one["batch"]], adapter.maps_[one["batch"]]
        assert one["error_before"] == pytest.approx(facts.error_before, rel=1e-3)
        assert one["error_after"] == pytest.approx(facts.error_after, rel=1e-3)
        assert one["overlap"] == pytest.approx(facts.overlap, rel=1e-3)
        mean, sd = affine.fitted_on.mean, affine.fitted_on.sd
        change = (affine(mean[None])[0] - mean) / sd
        error = adapter.errors_[one["batch"]].std(mean[None])[0] / sd
        mine = [k for k, label in enumerate(record["features"]["batch"]) if label == one["batch"]]
        for name, values in (("change_sd", change), ("change_sd_error", error)):
            shown = [record["features"][name][k] for k in mine]
            np.testing.assert_allclose(shown, values, rtol=1e-3)


def test_the_largest_error_is_that_of_one_batch(chain):
    known = [one for one in chain["batches"] if one["error_after"] is not None]
    worst = max(known, key=lambda one: one["error_after"])
    largest = max(one["error_before"] for one in known)
    assert worst["error_before"] != largest  # of another batch
    errors = f"{worst['error_before']:.2f} → {worst['error_after']:.2f}"
    assert f"Largest error: {worst['batch']}{errors} sd" in words(render(chain))


def test_every_ellipse_is_inside_its_panel():
    found = record_of(table([(0, 1)] * 12, sizes=30))["pictures"]["components"]
    for group in found:
        for one in (one for drawn in group["ellipses"].values() for one in drawn):
            turn = np.radians(one["turn"])
            across = np.hypot(one["rx"] * np.cos(turn), one["ry"] * np.sin(turn))
            up = np.hypot(one["rx"] * np.sin(turn), one["ry"] * np.cos(turn))
            assert -1 <= one["x"] - across < one["x"] + across <= 301
            assert -1 <= one["y"] - up < one["y"] + up <= 221


def test_the_page_says_what_the_record_says(chain):
    page = render(chain)
    text = words(page)
    for part in (chain["verdict"]["word"], chain["verdict"]["sentence"], "A, as asked for"):
        assert part in text
    for one in chain["batches"][1:]:
        assert f"{one['error_before']:.2f} → {one['error_after']:.2f}" in text
        assert " → ".join(one["path"]) in text
        assert one["evaluation"]["versions"]["shift_sd"]
        for finding in one["findings"]:
            assert finding["text"] in text
    assert "condokit report <t>.csv" in text
    assert "0" * 64 in text
    assert best_links(page) == 3
    x = [float(node[0]) for node in nodes(page)]
    assert x == sorted(set(x))  # one column for every step
    levels = [int(h) for h in re.findall(r"<h(\d)", page)]
    assert all(b - a <= 1 for a, b in zip([0, *levels], levels))


def test_the_page_asks_nobody(chain):
    page = render(chain)
    static = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"(?:https?:)?//[\w.]+", static)
    assert "script-src 'sha256-" in page
    assert set(re.findall(r'href="#([\w-]+)"', static)) <= set(re.findall(r'id="([\w-]+)"', static))


def test_features_of_all_batches_can_be_searched(chain):
    page = render(chain)
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL).group(1))
    features = data["features"]
    both = sorted(zip(features["batch"], features["feature"]))
    assert both == [(batch, feature) for batch in "BCD" for feature in FEATURES]
    assert features["p_adjusted"] == sorted(features["p_adjusted"])
    drawn = {(one["batch"], one["feature"]) for one in data["densities"]}
    assert drawn == set(both)


def test_samples_are_not_named(chain):
    assert chain["wanted"]
    assert not any("also in" in line for line in chain["wanted"])


def test_names_stay_text():
    names = ["<b>&", "A", "</title><img src=x>", "{{ 7 * 7 }}"]
    record = record_of(table([(0, 1)] * 4, names=names), reference="<b>&")
    page = render(record)
    assert "<b>&<" not in page.replace("&amp;", "&")
    assert "<img" not in page
    assert words(page).count("<b>&") > 3
    assert "{{ 7 * 7 }}" in page
    assert len(nodes(page)) == 4


def test_two_batches():
    page = render(record_of(table([(0, 1), (0, 1)])))
    assert [node[3] for node in nodes(page)] == ["centre", "good"]
    assert best_links(page) == 1
    assert "B made comparable with A" in words(page)


def test_twelve_batches_do_not_cover_each_other():
    rng = np.random.default_rng(0)
    groups = [(0, 1), *(rng.choice(4, 2, replace=False) for _ in range(11))]
    record = record_of(table(groups, sizes=[30 + 3 * k for k in range(12)]), reference="auto")
    page = render(record)
    placed = nodes(page)
    assert len(placed) == 12
    assert best_links(page) == 11
    columns = {}
    for x, y, _, _ in placed:
        columns.setdefault(x, []).append(float(y))
    height = float(re.search(r'viewBox="0 0 \d+ ([\d.]+)"', page).group(1))
    for ys in columns.values():
        assert min(np.diff(sorted(ys)), default=30) >= 29
        assert min(ys) > 0
        assert max(ys) < height
    radius = {one["batch"]: float(node[2]) for one, node in zip(record["batches"], placed)}
    assert radius["A"] < radius["L"]  # by rows


def test_batches_without_a_path_are_shown_as_left_alone():
    with pytest.warns(UserWarning, match="No path"):
        record = record_of(table([(0, 1), (0, 1), (7, 8)]), unreachable="keep")
    one = record["batches"][2]
    assert (one["batch"], one["path"], one["error_after"]) == ("C", [], None)
    page = render(record)
    assert "Left as they are: C. No path of batches leads from it" in words(page)
    assert [node[3] for node in nodes(page)][2] == "lost"
    assert best_links(page) == 1
    assert 'href="#batch-3"' not in page


@pytest.mark.filterwarnings("ignore:Fewer than 5 rows in batch")
def test_counts_of_few_rows_and_bridges_are_hidden():
    frame = table([(0, 1), (0, 1), (0, 1)], sizes=[40, 3, 41])
    frame["sample"] = [f"s{k}" if k < 3 else None for k in [*range(40), *range(3), *range(41)]]
    record = record_of(frame, bridge="sample")
    assert [one["rows"] for one in record["batches"]] == ["~40", "<5", 41]
    assert {pair["bridges"] for pair in record["pairs"]} == {"<5"}
    columns = record["features"]
    few = [columns["change"][k] for k, label in enumerate(columns["batch"]) if label == "B"]
    assert few == [None] * 3  # means of three rows
    text = words(render(record))
    assert "< 5 bridges" in text


def test_the_centre_has_no_reference():
    record = record_of(table([(0, 1)] * 3), reference="consensus")
    text = words(render(record))
    assert "A, B and C made comparable" in text
    assert "comparable with" not in text[: text.index("Batches")]
    assert all(one["verdict"] for one in record["batches"])


def test_maps_that_were_loaded_or_added_have_a_page(tmp_path):
    frame = table([(0, 1)] * 3)
    adapter, _ = study_of(frame[frame.site != "C"])
    adapter.add_batch(frame, batch="site", confounders=["group"])
    roles = {"batch": "site", "confounders": ["group"]}
    record = save(tmp_path / "added.html", adapter, frame, **roles)
    with pytest.raises(FileError, match="added.html exists; set force to True to replace it"):
        save(tmp_path / "added.html", adapter, frame, **roles)
    assert [pair["batches"] for pair in record["pairs"] if pair["on_path"]][-1][0] == "C"
    assert len(nodes((tmp_path / "added.html").read_text(encoding="utf-8"))) == 3
    adapter, _ = study_of(frame)
    adapter.save(tmp_path / "maps.json", errors=False)
    record = save(
        tmp_path / "loaded.html", BatchAdapter.load(tmp_path / "maps.json"), frame, **roles
    )
    assert [one["overlap"] is None for one in record["batches"]] == [True, False, False]
    assert not record["has_errors"]
    assert "standard errors of some maps are not known" in words(render(record))
