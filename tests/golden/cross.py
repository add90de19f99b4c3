"""The golden cross: small studies, every door by which their rows can come in, and what is found.

`python tests/golden/cross.py` (with `src` on the path) records `cross.json` anew, and prints what
has moved and where doors differ. A change that means to move a result records it again and says
why; `tests/test_golden_cross.py` compares.
"""

import io
import json
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd

from condokit import BatchAdapter, ConDoAdapter, Statistics
from condokit.batches.record import facts_for_file
from condokit.data.records import plain
from condokit.maps.families import LocationScale

RECORDS = Path(__file__).with_name("cross.json")
DOORS = ("arrays", "frames", "lazy", "statistics", "file")
MAPS = ("shift", "location-scale", "affine", "auto")
CONFOUNDERS = {"none": (), "category": ("sex",), "number": ("age",), "both": ("sex", "age")}
VARIANTS = ("missing", "weights", "groups", "links", "tails")
RANGES = {"age": (20.0, 80.0)}
FEATURES = ["column 0", "column 1"]  # as messages call the columns of an array
_SEARCH = ("n_iter", "gradient_norm", "starts", "covariances")  # ties here are rounding
_LABELS = "ABCD"
_SHIFT, _SCALE = (0.0, 1.0, -0.7, 0.4), (1.0, 1.4, 0.8, 1.2)


def cells():
    """Return (number of domains, confounders, map, variant) of every study."""
    plain = [(k, z, m, "") for k in (2, 4) for z in CONFOUNDERS for m in MAPS]
    how = [
        (k, z, "location-scale", v)
        for k in (2, 4)
        for z in ("category", "number")
        for v in VARIANTS
    ]
    return plain + how


def name_of(cell):
    """Return what a study is called in the records."""
    return " ".join(str(part) for part in cell if part)


def study(n_domains, variant):
    """Return a table of so many domains, of which A is the reference."""
    rng = np.random.default_rng(7)
    n, tables = 200, []
    for label, shift, scale in list(zip(_LABELS, _SHIFT, _SCALE))[:n_domains]:
        share = 0.4 if label == "A" else 0.6
        sex = np.where(rng.random(n) < share, "F", "M")
        age = np.round(rng.uniform(25, 70, n) + (8 if label == "A" else 0), 1)
        noise = rng.standard_t(2.2, (n, 2)) if variant == "tails" else rng.normal(size=(n, 2))
        truth = noise @ [[1.0, 0.4], [0.0, 0.9]] + 1.2 * (sex == "F")[:, None]
        truth += 0.05 * (age - 45)[:, None] * [1.0, -0.5]
        if variant == "links":
            truth = np.exp(0.3 * truth)
        X = np.round((truth - (0 if variant == "links" else shift)) / scale, 6)
        table = pd.DataFrame(X, columns=FEATURES)
        table["site"], table["sex"], table["age"] = label, sex, age
        table["weight"] = rng.integers(1, 3, n).astype(float)
        table["subject"] = [f"{label}{k // 2}" for k in range(n)]
        tables.append(table)
    table = pd.concat(tables, ignore_index=True)
    if variant == "missing":
        table.loc[rng.random(len(table)) < 0.1, FEATURES[0]] = np.nan
    return table.iloc[rng.permutation(len(table))].reset_index(drop=True)


def fitted(cell, door):
    """Fit one study, its rows coming in by one door."""
    n_domains, confounders, map, variant = cell
    table, names = study(n_domains, variant), list(CONFOUNDERS[confounders])
    if variant == "links":
        map = LocationScale(links={"column 0": "log", "column 1": "log"})
    adapter = ConDoAdapter(map, random_state=0)
    label = "domain" if n_domains == 2 else "batch"
    if n_domains == 2:
        adapter.set_params(reference="A")
    else:
        adapter = BatchAdapter(adapter, reference="A")
    roles = {"confounders": names or None}
    roles |= {"sample_weight": "weight"} if variant == "weights" else {}
    if door in ("statistics", "file"):
        if variant == "groups":
            raise TypeError("statistics take no groups")
        ranges = {name: RANGES[name] for name in names if name in RANGES}
        found = Statistics.of(table, domain="site", features=FEATURES, ranges=ranges, **roles)
        if door == "file":
            written = io.BytesIO()
            found.save(written)
            written.seek(0)
            found = Statistics.load(written)
        return adapter.fit_statistics(found)
    roles |= {"groups": "subject"} if variant == "groups" else {}
    if door == "arrays":
        values = {key: table[name].to_numpy() for key, name in roles.items() if type(name) is str}
        values["confounders"] = {name: table[name].to_numpy() for name in names} or None
        if variant == "links":
            base = LocationScale(links={0: "log", 1: "log"})
            adapter.set_params(**{"map" if n_domains == 2 else "adapter__map": base})
        return adapter.fit(table[FEATURES].to_numpy(), **{label: table["site"]}, **values)
    if variant != "groups":  # which would be pointed out
        table = table.drop(columns="subject")
    if door == "lazy":
        import polars

        table = polars.from_pandas(table).lazy()
    return adapter.fit(table, features=FEATURES, **{label: "site"}, **roles)


def record(cell, door):
    """Return maps, warnings and facts of a fit, or why it was refused, as JSON has them."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            adapter = fitted(cell, door)
        except (ValueError, TypeError) as error:
            return {"refused": f"{type(error).__name__}: {str(error)[:160]}"}
    maps = {"B": adapter.map_} if cell[0] == 2 else adapter.maps_
    at = np.array([[-1.0, -1.0], [0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [2.0, 3.0]])
    at = np.exp(at) if cell[3] == "links" else at
    report = plain(adapter.report_) if cell[0] == 2 else plain(facts_for_file(adapter.report_))
    if cell[0] == 2:
        report = {name: fact for name, fact in report.items() if name not in _SEARCH}
    codes = [getattr(getattr(w.message, "args", [""])[0], "code", "") for w in caught]
    return {
        "maps": {str(label): np.asarray(one(at)).tolist() for label, one in maps.items()},
        "warnings": sorted(codes),
        "report": json.loads(json.dumps(report, default=str)),
    }


def differences(one, other, tolerance, at=""):
    """Yield the places at which two records differ, numbers by more than a relative tolerance.

    Expected errors of a site may differ by .002: those of matrices are found by resampling, and
    where two starts of a search are as good, rounding on another machine decides.
    """
    if at.endswith(("/error_before", "/error_after")):
        tolerance = max(tolerance, 2e-3)
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({*one, *other}):
            yield from differences(one.get(key), other.get(key), tolerance, f"{at}/{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for k, (a, b) in enumerate(zip(one, other)):
            yield from differences(a, b, tolerance, f"{at}/{k}")
    elif type(one) in (int, float) and type(other) in (int, float):
        if not abs(one - other) <= tolerance * max(1.0, abs(one), abs(other)):
            yield f"{at}: {one!r} and {other!r}"
    elif one != other:
        yield f"{at}: {str(one)[:200]} and {str(other)[:200]}"


def main():
    """Record all fits; say what moved, and which doors differ from that of arrays."""
    before = json.loads(RECORDS.read_text()) if RECORDS.exists() else {}
    found = {name_of(cell): {door: record(cell, door) for door in DOORS} for cell in cells()}
    found = json.loads(json.dumps(found), parse_float=lambda x: float(f"{float(x):.10g}"))
    for name, doors in found.items():
        for door, one in doors.items():
            moved = list(differences(before.get(name, {}).get(door), one, 1e-6))
            if before and moved:
                sys.stdout.write(f"moved: {name} by {door}: {moved[0]}\n")
            if other := list(differences(doors["arrays"], one, 1e-7)):
                sys.stdout.write(f"differs: {name} by {door}: {other[0]}\n")
    lines = [
        f" {json.dumps(name)}: {{\n"
        + ",\n".join(f"  {json.dumps(door)}: {json.dumps(one)}" for door, one in doors.items())
        + "\n }"
        for name, doors in found.items()
    ]
    RECORDS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
