"""Write maps and statistics of this version, which every later one must read as this one did.

`python tests/frozen.py` writes into `tests/frozen/VERSION`: files of all kinds, and what their maps
make of a few rows. It is run once, before a release; the folders that exist never change. Files of
0.1.0 and 1.0.0rc1 are in `tests/maps` and `tests/statistics`.
"""

import json
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from sites_made import hospital

import condokit
from condokit import BatchAdapter, ConDoAdapter, Statistics

FOLDER = Path(__file__).parent / "frozen"
FEATURES = ["crp", "hb", "na", "wbc"]
ROWS = np.array([[0.5, 1.0, 2.0, 4.0], [-1.0, 0.0, 0.3, 2.5], [3.0, np.nan, 1.0, 0.1]])
MAPS = {
    "shift": {"map": "shift"},
    "diagonal": {"map": "location-scale"},
    "low-rank": {"map": "low-rank"},
    "dense": {"map": "affine"},
    "monotone": {"map": "monotone"},
}


def tables() -> pd.DataFrame:
    rows = pd.concat([hospital(label).assign(site=label) for label in "ABC"], ignore_index=True)
    return rows.assign(age=np.random.default_rng(5).uniform(20, 90, len(rows)))


def statistics(rows: pd.DataFrame) -> dict[str, Statistics]:
    """Return statistics with categories, a number, counts of values, and of several domains."""
    roles = {"label": "A", "features": FEATURES, "confounders": ["sex", "ward"]}
    mine = rows[rows["site"] == "A"]
    with_age = roles | {"confounders": ["sex", "age"], "ranges": {"age": (18, 95)}}
    other = Statistics.of(rows[rows["site"] == "B"], **roles | {"label": "B"})
    return {
        "categories": Statistics.of(mine, **roles),
        "numbers": Statistics.of(mine, **with_age),
        "values": Statistics.of(mine, **roles, given=["crp"]),
        "sites": Statistics.of(mine, **roles).merge(other),
    }


def main() -> None:
    folder = FOLDER / condokit.__version__
    folder.mkdir(parents=True, exist_ok=True)
    rows = tables()
    roles = {"confounders": ["sex", "ward"], "features": FEATURES}
    two = rows[rows["site"] != "C"]
    mapped = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, settings in MAPS.items():
            adapter = ConDoAdapter(reference="A", random_state=0, **settings)
            adapter.fit(two, domain="site", **roles)
            adapter.map_.save(folder / f"{name}.json")
            mapped[name] = described(condokit.load_map(folder / f"{name}.json"))
        study = BatchAdapter(reference="A").fit(rows, batch="site", **roles)
        study.save(folder / "batches.json")
        again = BatchAdapter.load(folder / "batches.json")
        for label in "BC":
            mapped[f"batches {label}"] = described(again.maps_[label])
        for name, stats in statistics(rows).items():
            stats.save(folder / f"statistics-{name}.json")
    (folder / "mapped.json").write_text(json.dumps({"rows": given(ROWS), "maps": mapped}, indent=1))


def given(values: np.ndarray) -> list:
    """Return numbers as JSON has them, null for what is missing."""
    return [[None if np.isnan(x) else float(x) for x in row] for row in values]


def described(found: condokit.AffineMap) -> dict[str, list]:
    """Return where a map sends the rows, and the errors of that."""
    errors = {} if found.errors is None else {"errors": given(found.errors.std(ROWS[:2]))}
    return {"mapped": given(found(ROWS)), **errors}


if __name__ == "__main__":
    main()
