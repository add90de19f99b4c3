"""The paper's data sets and our own test problems, drawn in the order of the protocols."""

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from scipy.stats import ortho_group


@dataclass(frozen=True)
class Pair:
    """Two domains, their confounder, and what the query rows would be without the shift."""

    X_query: np.ndarray
    X_reference: np.ndarray
    Z_query: np.ndarray
    Z_reference: np.ndarray
    truth: np.ndarray


def rmse(adapted, truth):
    """Root mean squared error over all rows and features."""
    return float(np.sqrt(np.mean((adapted - truth) ** 2)))


def data_folder():
    """Return the folder of the real data sets, or None."""
    folder = os.environ.get("CONDOKIT_DATA")
    return Path(folder) if folder and Path(folder).is_dir() else None


def categorical1d(n, seed):
    """Draw one feature, two classes, n rows in each domain; observed query = 2 x + 5."""
    rng = np.random.RandomState(seed)
    many, few = round(3 * n / 4), round(n / 4)
    query_h = rng.normal(5, 1, few)
    reference_h = rng.normal(5, 1, many)
    query_n = rng.normal(0, 2, n - few)
    reference_n = rng.normal(0, 2, n - many)
    truth = np.concatenate([query_h, query_n])[:, None]
    return Pair(
        2 * truth + 5,
        np.concatenate([reference_h, reference_n])[:, None],
        np.repeat(["h", "n"], [few, n - few]),
        np.repeat(["h", "n"], [many, n - many]),
        truth,
    )


@cache
def _measurements():
    folder = data_folder()
    if folder is None:
        raise FileNotFoundError("ANSUR II is not here; set CONDOKIT_DATA to the data folder.")
    import pandas as pd

    table = pd.read_csv(folder / "ansur2.csv.gz")
    return table.iloc[:, 1:94].to_numpy(float), (table["Gender"] == "Male").to_numpy()


def ansur(seed, *, n=500, shift="large", people_shift=True):
    """Draw ANSUR II: 93 measurements, gender as the confounder, the map from target to source.

    `shift` is "large" (the paper's location-scale: scales and offsets U[.5, 2]), "affine" (the
    paper's: a rotation, scales U[.5, 2], a rotation), None, or (r, s): scales within r of one and
    offsets within s standard deviations. `n` people per domain; fewer than 500 are a subsample in
    which both genders occur in both domains.
    """
    measurements, is_man = _measurements()
    rng = np.random.RandomState(seed)
    men = rng.choice(np.flatnonzero(is_man), 500, replace=False)
    women = rng.choice(np.flatnonzero(~is_man), 500, replace=False)
    X = measurements[np.concatenate([men, women])]
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    gender = np.repeat(["man", "woman"], 500)
    man, woman = np.arange(500), np.arange(500, 1000)
    rng.shuffle(man)
    rng.shuffle(woman)
    k = 375 if people_shift else 250
    reference = np.concatenate([man[:k], woman[: 500 - k]])
    query = np.concatenate([man[k:], woman[500 - k :]])
    rng.shuffle(reference)
    rng.shuffle(query)
    if shift == "affine":
        left = ortho_group.rvs(93, random_state=rng)
        mix = left * rng.uniform(0.5, 2, 93) @ ortho_group.rvs(93, random_state=rng)
        return Pair(X[query] @ mix, X[reference], gender[query], gender[reference], X[query])
    scale, offset = np.ones(93), np.zeros(93)
    if shift == "large":
        scale, offset = rng.uniform(0.5, 2, 93), rng.uniform(0.5, 2, 93)
    elif shift is not None:
        scale = 1 + rng.uniform(-shift[0], shift[0], 93)
        offset = rng.uniform(-shift[1], shift[1], 93)
    if n < 500:
        query, reference = (_subsample(rows, gender, n, rng) for rows in (query, reference))
    truth = X[query]
    return Pair(truth * scale + offset, X[reference], gender[query], gender[reference], truth)


def _subsample(rows, gender, n, rng):
    while True:
        chosen = rng.choice(rows, n, replace=False)
        if len(set(gender[chosen])) == 2:
            return chosen


def bladderbatch(seed=None):
    """Return (X, result, batch) of batches 2 and 5; with a seed, without 7 cancers of batch 2."""
    folder = data_folder()
    if folder is None:
        raise FileNotFoundError("bladderbatch is not here; set CONDOKIT_DATA to the data folder.")
    import pandas as pd

    X = np.load(folder / "bladderbatch_expr.npz")["expr"]
    people = pd.read_csv(folder / "bladderbatch_pheno.csv")
    keep = people["batch"].isin([2, 5]).to_numpy()
    X, people = X[keep], people[keep]
    result, batch = people["result"].to_numpy(str), people["batch"].to_numpy()
    if seed is not None:
        cancer = np.flatnonzero((batch == 2) & (result == "Cancer"))
        dropped = np.random.RandomState(seed).choice(cancer, 7, replace=False)
        X, result, batch = (np.delete(a, dropped, axis=0) for a in (X, result, batch))
    return X, result, batch


EFFECTS = ("homoscedastic", "heteroscedastic", "nonlinear")


def curve(effect, z):
    """Return mean and standard deviation of the feature given the confounder."""
    if effect == "homoscedastic":
        return 4 * z + 1, np.full_like(z, 2.0)
    if effect == "heteroscedastic":
        return 4 * z + 1, z + 1
    r = np.maximum(z - 5, 0) ** 2
    return 4 * r + 1, r + 1


@dataclass(frozen=True)
class Heldout(Pair):
    """A pair with heldout query rows, observed and true."""

    X_heldout: np.ndarray
    truth_heldout: np.ndarray


def continuous1d(
    effect,
    seed,
    *,
    people_shift=True,
    scale=2.0,
    offset=5.0,
    noise=False,
    columns=1,
    kind="irrelevant",
):
    """Draw the paper's continuous confounder: 200 reference, 100 query and 100 heldout query rows.

    Observed query = scale * x + offset. With more `columns`, the others are noise ("irrelevant"),
    or the confounder is split into columns that sum to it ("split").
    """
    rng = np.random.RandomState(seed)
    z_reference = np.sort(rng.uniform(0, 8, 200))
    z_query = np.sort(rng.uniform(4 if people_shift else 0, 8, 100))
    z_heldout = np.sort(rng.uniform(0, 8, 100))
    Z_query, Z_reference = z_query[:, None], z_reference[:, None]
    if columns > 1 and kind == "irrelevant":
        Z_reference = np.column_stack([Z_reference, rng.normal(size=(200, columns - 1))])
        Z_query = np.column_stack([Z_query, rng.normal(size=(100, columns - 1))])
    X_reference, truth, truth_heldout = (
        rng.normal(*curve(effect, z))[:, None] for z in (z_reference, z_query, z_heldout)
    )
    X_query, X_heldout = scale * truth + offset, scale * truth_heldout + offset
    if noise:
        X_query = X_query + rng.normal(size=X_query.shape)
        X_heldout = X_heldout + rng.normal(size=X_heldout.shape)
    if columns > 1 and kind == "split":
        Z_query, Z_reference = (_split(z, columns, rng) for z in (z_query, z_reference))
    return Heldout(X_query, X_reference, Z_query, Z_reference, truth, X_heldout, truth_heldout)


def _split(z, columns, rng):
    cuts = np.sort(rng.uniform(0, 1, (len(z), columns - 1)) * z[:, None], axis=1)
    return np.diff(np.column_stack([np.zeros(len(z)), cuts, z]), axis=1)


def mixed(seed):
    """Draw a continuous and a categorical confounder: a line and a spread for each class."""
    rng = np.random.RandomState(seed)

    def draw(n, low, shares):
        z, c = rng.uniform(low, 8, n), rng.choice(3, n, p=shares)
        x = np.array([1, 3, 5])[c] * z + np.array([0, 8, -4])[c]
        x = x + rng.normal(size=n) * np.array([1, 2, 1.5])[c]
        return x[:, None], {"z": z, "class": np.array(["a", "b", "c"])[c]}

    truth, Z_query = draw(120, 4, [0.6, 0.3, 0.1])
    X_reference, Z_reference = draw(200, 0, [0.2, 0.3, 0.5])
    heldout, _ = draw(200, 0, [0.2, 0.3, 0.5])
    return Heldout(
        2 * truth + 5, X_reference, Z_query, Z_reference, truth, 2 * heldout + 5, heldout
    )


def rotations(n_features, n_strata, n, seed, *, skewed=False):
    """Draw Gaussian strata whose query was rotated, scaled, rotated and moved; det A > 0.

    `n` rows per stratum on average; shares grow from 1 to 3 in the query and fall in the reference.
    """
    rng = np.random.default_rng(seed)
    mean = rng.normal(size=(n_strata, n_features))
    factors = rng.normal(size=(n_strata, n_features, min(n_features, 3)))
    noise = rng.uniform(0.1, 0.5, (n_strata, n_features))
    covariance = factors @ factors.transpose(0, 2, 1) + noise[:, :, None] * np.eye(n_features)
    root = np.linalg.cholesky(covariance)
    shares = np.linspace(1, 3, n_strata) / np.linspace(1, 3, n_strata).sum()

    def draw(p):
        z = rng.choice(n_strata, n * n_strata, p=p)
        size = (len(z), n_features)
        white = rng.exponential(size=size) - 1 if skewed else rng.normal(size=size)
        return mean[z] + np.einsum("nij,nj->ni", root[z], white), np.array([f"z{k}" for k in z])

    truth, Z_query = draw(shares)
    X_reference, Z_reference = draw(shares[::-1])
    left, right = (ortho_group.rvs(n_features, random_state=rng) for _ in range(2))
    A = left * rng.uniform(0.5, 2, n_features) @ right
    if np.linalg.det(A) < 0:
        A[:, 0] *= -1
    X_query = truth @ A.T + rng.normal(size=n_features)
    return Pair(X_query, X_reference, Z_query, Z_reference, truth)


SCENARIOS = ("no confounding", "confounded", "random transform")


def categorical2d(seed):
    """Draw rings in the plane, one raised by 2 ("up"), in the order of the three scenarios."""
    rng = np.random.RandomState(seed)
    pairs = {}
    for scenario in SCENARIOS:
        ups = (100 if scenario == SCENARIOS[0] else 50, 100, 100)  # query, heldout, reference
        rings = []
        for up, swapped in zip(ups, (False, False, True)):
            angle = rng.uniform(0, 2 * np.pi, 200)
            ring = np.column_stack([np.cos(angle), np.sin(angle)][:: -1 if swapped else 1])
            ring = ring + rng.normal(0, 0.1, (200, 2))
            ring[:up, 1] += 2
            rings.append(ring)
        A, b = np.array([[1.5, 0.7], [0.7, 1.5]]), np.array([4.0, 2.0])
        if scenario == SCENARIOS[2]:
            phi = rng.uniform(-np.pi, np.pi)
            d = rng.uniform(0.5, 1.5, 2)
            theta = rng.uniform(-np.pi, np.pi)
            b = rng.uniform(2, 4, 2)
            A = _rotation(theta) * d @ _rotation(phi)
        label = [np.repeat(["up", "down"], [up, 200 - up]) for up in ups]
        query, heldout, reference = rings
        pairs[scenario] = Heldout(
            query, reference @ A + b, label[0], label[2], query @ A + b, heldout, heldout @ A + b
        )
    return pairs


def _rotation(angle):
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


def subjects(effect, seed, n, *, rows_each=1, correlation=0.0, n_features=30):
    """Draw n subjects in each domain, with one confounder value and correlated noise each.

    Returns X and z of query and reference, and the subjects of their rows; observed query =
    2 x + 5.
    """
    rng = np.random.default_rng(seed)
    out = []
    for low in (4, 0):
        z = rng.uniform(low, 8, n).repeat(rows_each)
        shared = rng.normal(size=(n, n_features)).repeat(rows_each, axis=0)
        own = rng.normal(size=(n * rows_each, n_features))
        noise = np.sqrt(correlation) * shared + np.sqrt(1 - correlation) * own
        mean, sd = curve(effect, z)
        out.append((mean[:, None] + sd[:, None] * noise, z))
    (truth, z_query), (X_reference, z_reference) = out
    who = np.arange(n).repeat(rows_each)
    return 2 * truth + 5, X_reference, z_query, z_reference, (who, who + n)
