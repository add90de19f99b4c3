"""The paper's synthetic problems: two domains, their confounders, and the true map.

Random numbers are drawn in the order of the published experiments, so `random_state=0` to 9 are
its ten simulations. A `RandomState` may be given and is advanced, as where one simulation
draws several settings from one stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from condokit.checks import Array

EFFECTS = ("homoscedastic", "heteroscedastic", "nonlinear")
SCENARIOS = ("no confounding", "confounded", "random transform")
RandomState = int | np.random.RandomState | None


@dataclass(frozen=True)
class Problem:
    """Two domains with a known answer.

    Attributes
    ----------
    X_query, X_reference : ndarray of shape (n_rows, n_features)
        What is observed of either domain.
    Z_query, Z_reference : ndarray of shape (n_rows,) or (n_rows, n_confounders)
        The confounders, known while fitting.
    truth : ndarray of shape (n_query, n_features)
        What the query rows would be in the reference domain, without noise of measurement.
    A, b : ndarray of shape (n_features, n_features) and (n_features,)
        The true map from query to reference, x to A x + b.
    X_heldout, truth_heldout : ndarray
        Query rows that no map is fitted to, with the confounders of the reference domain; empty
        where the paper has none.
    z_query, z_reference : ndarray of shape (n_rows,)
        The confounder that acts, where `Z_query` holds more or other columns.
    """

    X_query: Array
    X_reference: Array
    Z_query: Array
    Z_reference: Array
    truth: Array
    A: Array
    b: Array
    X_heldout: Array
    truth_heldout: Array
    z_query: Array
    z_reference: Array


def make_continuous1d(
    effect: str = "homoscedastic",
    *,
    confounder_shift: bool = True,
    scale: float = 2.0,
    offset: float = 5.0,
    noise: float = 0.0,
    sd: float = 2.0,
    n_confounders: int = 1,
    columns: str = "irrelevant",
    n_query: int = 100,
    n_reference: int = 200,
    n_heldout: int = 100,
    random_state: RandomState = None,
) -> Problem:
    r"""Make one feature that depends on a continuous confounder.

    The confounder is uniform on [0, 8], in the query on [4, 8] if it is shifted. The feature is
    normal given it: mean 4 z + 1 and standard deviation `sd` ("homoscedastic") or z + 1
    ("heteroscedastic"), or mean 4 r + 1 and standard deviation r + 1 with
    :math:`r = \max(z - 5, 0)^2` ("nonlinear"). The query shows scale * x + offset.

    Parameters
    ----------
    effect : {"homoscedastic", "heteroscedastic", "nonlinear"}
        How the feature depends on the confounder.
    confounder_shift : bool, default=True
        Whether the domains differ in the confounder (the paper's target shift).
    scale, offset : float, default=2, 5
        The shift of the device; 1 and 0 for none.
    noise : float, default=0
        Standard deviation of noise added to what the query shows.
    sd : float, default=2
        Of the homoscedastic effect. The paper's text says 1, its experiments used 2.
    n_confounders : int, default=1
        Columns of confounders.
    columns : {"irrelevant", "split"}
        What the other columns are: standard normal noise, or all columns together are random
        parts that sum to the confounder.
    n_query, n_reference, n_heldout : int, default=100, 200, 100
        Rows.
    random_state : int, RandomState or None
        Seed.

    Examples
    --------
    >>> from condokit.datasets import make_continuous1d
    >>> problem = make_continuous1d("nonlinear", random_state=0)
    >>> problem.X_query.shape, problem.A.item(), problem.b.item()
    ((100, 1), 0.5, -2.5)
    """
    _check("effect", effect, EFFECTS)
    _check("columns", columns, ("irrelevant", "split"))
    rng = check_random_state(random_state)
    z_reference = np.sort(rng.uniform(0, 8, n_reference))
    z_query = np.sort(rng.uniform(4 if confounder_shift else 0, 8, n_query))
    z_heldout = np.sort(rng.uniform(0, 8, n_heldout))
    if columns == "irrelevant":
        others = [rng.normal(size=(len(z), n_confounders - 1)) for z in (z_reference, z_query)]
    X_reference, truth, truth_heldout = (
        rng.normal(*curve(effect, z, sd))[:, None] for z in (z_reference, z_query, z_heldout)
    )
    X_query, X_heldout = scale * truth + offset, scale * truth_heldout + offset
    if noise:
        X_query, X_heldout = (X + rng.normal(0, noise, X.shape) for X in (X_query, X_heldout))
    if columns == "irrelevant":
        Z_reference, Z_query = map(np.column_stack, zip((z_reference, z_query), others))
    else:
        Z_query, Z_reference = (_split(z, n_confounders, rng) for z in (z_query, z_reference))
    A, b = np.array([[1 / scale]]), np.array([-offset / scale])
    observed = (X_query, X_reference, Z_query, Z_reference)
    return Problem(*observed, truth, A, b, X_heldout, truth_heldout, z_query, z_reference)


def make_categorical1d(n: int = 100, *, random_state: RandomState = None) -> Problem:
    """Make one feature of two classes: "h" is N(5, 1), "n" is N(0, 2^2).

    A quarter of the query rows and three quarters of the reference rows are "h"; the query
    shows 2 x + 5.

    Parameters
    ----------
    n : int, default=100
        Rows of either domain.
    random_state : int, RandomState or None
        Seed.
    """
    rng = check_random_state(random_state)
    many, few = round(3 * n / 4), round(n / 4)
    query_h = rng.normal(5, 1, few)
    reference_h = rng.normal(5, 1, many)
    query_n = rng.normal(0, 2, n - few)
    reference_n = rng.normal(0, 2, n - many)
    truth = np.concatenate([query_h, query_n])[:, None]
    reference = np.concatenate([reference_h, reference_n])[:, None]
    Z = (np.repeat(["h", "n"], [few, n - few]), np.repeat(["h", "n"], [many, n - many]))
    A, b, none = np.array([[0.5]]), np.array([-2.5]), np.empty((0, 1))
    return Problem(2 * truth + 5, reference, *Z, truth, A, b, none, none, *Z)


def make_categorical2d(
    scenario: str = "confounded", *, random_state: RandomState = None
) -> Problem:
    """Make rings in the plane, one of them raised by 2 ("up"), and a reference that is sheared.

    200 rows each of the query, the reference and the heldout query. Half of them are "up", but a
    quarter of the query unless there is "no confounding". The reference shows A x + b, of
    a fixed A or, in "random transform", a rotation, two scales and another rotation.

    Parameters
    ----------
    scenario : {"no confounding", "confounded", "random transform"}
        See above.
    random_state : int, RandomState or None
        Seed.
    """
    _check("scenario", scenario, SCENARIOS)
    rng = check_random_state(random_state)
    ups = (100 if scenario == "no confounding" else 50, 100, 100)  # query, heldout, reference
    rings = []
    for up, swapped in zip(ups, (False, False, True)):
        angle = rng.uniform(0, 2 * np.pi, 200)
        ring = np.column_stack([np.cos(angle), np.sin(angle)][:: -1 if swapped else 1])
        ring = ring + rng.normal(0, 0.1, (200, 2))
        ring[:up, 1] += 2
        rings.append(ring)
    rows, b = np.array([[1.5, 0.7], [0.7, 1.5]]), np.array([4.0, 2.0])
    if scenario == "random transform":
        phi = rng.uniform(-np.pi, np.pi)
        d = rng.uniform(0.5, 1.5, 2)
        theta = rng.uniform(-np.pi, np.pi)
        b = rng.uniform(2, 4, 2)
        rows = _rotation(theta) * d @ _rotation(phi)  # of row vectors
    query, heldout, reference = rings
    Z_query, _, Z_reference = (np.repeat(["up", "down"], [up, 200 - up]) for up in ups)
    Z = (Z_query, Z_reference)
    truth, truth_heldout = query @ rows + b, heldout @ rows + b
    return Problem(query, reference @ rows + b, *Z, truth, rows.T, b, heldout, truth_heldout, *Z)


def curve(effect: str, z: Array, sd: float = 2.0) -> tuple[Array, Array]:
    """Return mean and standard deviation of the feature given the confounder."""
    if effect == "homoscedastic":
        return 4 * z + 1, np.full_like(z, sd)
    if effect == "heteroscedastic":
        return 4 * z + 1, z + 1
    r = np.maximum(z - 5, 0) ** 2
    return 4 * r + 1, r + 1


def _split(z: Array, n_columns: int, rng: Any) -> Array:
    cuts = np.sort(rng.uniform(0, 1, (len(z), n_columns - 1)) * z[:, None], axis=1)
    return np.diff(np.column_stack([np.zeros(len(z)), cuts, z]), axis=1)


def _rotation(angle: float) -> Array:
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


def _check(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}; got {value!r}.")
