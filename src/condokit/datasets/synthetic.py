"""Synthetic problems, most of them from the paper: two domains, confounders, and the true map.

Random numbers are drawn in the order of the published experiments, so that `random_state=0` to 9
reproduce the paper's ten simulations. A `RandomState` may be given instead and is advanced: some
simulations draw several settings from one stream.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from sklearn.utils import check_random_state

from condokit.checks import Array, check_word

EFFECTS = ("homoscedastic", "heteroscedastic", "nonlinear")
SCENARIOS = ("no confounding", "confounded", "random transform")
_CHANNELS = ("F3", "F4", "C3", "C4", "P3", "P4", "O1", "O2")
RandomState = int | np.random.RandomState | None


@dataclass(frozen=True)
class Problem:
    """Two domains with a known answer: the true map from query to reference is A x + b."""

    X_query: Array  #: Features of the query as observed: (n_query, n_features).
    X_reference: Array  #: Features of the reference: (n_reference, n_features).
    Z_query: Array  #: Confounders of the query that are given to the fit.
    Z_reference: Array  #: The same of the reference.
    #: What the query rows would be in the reference domain, without measurement noise.
    truth: Array
    A: Array  #: The matrix of the true map.
    b: Array  #: The offset of the true map.
    #: Query rows for testing, with the confounders' law of the reference domain; empty if the paper
    #: has none.
    X_heldout: Array
    truth_heldout: Array  #: What the rows of `X_heldout` would be in the reference domain.
    z_query: Array  #: The confounder that has the effect, if `Z_query` has more or other columns.
    z_reference: Array  #: The same of the reference.


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

    The confounder z is uniform on [0, 8]; in the query on [4, 8] if it is shifted. The feature x is
    normal given z: with mean 4 z + 1 and standard deviation `sd` ("homoscedastic") or z + 1
    ("heteroscedastic"), or with mean 4 r + 1 and standard deviation r + 1, where
    :math:`r = \max(z - 5, 0)^2` ("nonlinear"). In the query, scale * x + offset is observed.

    Parameters
    ----------
    effect : {"homoscedastic", "heteroscedastic", "nonlinear"}, default="homoscedastic"
        How the feature depends on the confounder.
    confounder_shift : bool, default=True
        Whether the domains differ in the confounder (the paper's target shift).
    scale, offset : float, default=2.0, 5.0
        The shift of the device; 1 and 0 for no shift.
    noise, sd : float, default=0.0, 2.0
        Standard deviations of noise that is added to the observed query, and of the homoscedastic
        feature (1 by the paper's text, but 2 in its experiments).
    n_confounders : int, default=1
        Number of columns of confounders.
    columns : {"irrelevant", "split"}, default="irrelevant"
        With several columns: whether the others are standard normal noise, or all columns are
        random parts whose sum is the confounder.
    n_query, n_reference, n_heldout : int, default=100, 200, 100
        Numbers of rows.
    random_state : int, RandomState or None, default=None
        Seed.

    Returns
    -------
    Problem
        Both domains, their confounders, and the true map.

    Examples
    --------
    >>> from condokit.datasets import make_continuous1d
    >>> problem = make_continuous1d("nonlinear", random_state=0)
    >>> problem.X_query.shape, problem.A.item(), problem.b.item()
    ((100, 1), 0.5, -2.5)
    """
    check_word("'effect'", effect, EFFECTS)
    check_word("'columns'", columns, ("irrelevant", "split"))
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
    """Make one feature x of two classes: N(5, 1) for "h" and N(0, 2^2) for "n".

    A quarter of the query rows and three quarters of the reference rows are "h". In the query,
    2 x + 5 is observed.

    Parameters
    ----------
    n : int, default=100
        Number of rows of each domain.
    random_state : int, RandomState or None, default=None
        Seed.

    Returns
    -------
    Problem
        Both domains, their confounders, and the true map.

    Examples
    --------
    >>> from condokit.datasets import make_categorical1d
    >>> problem = make_categorical1d(random_state=0)
    >>> problem.Z_query[:2], problem.A.item(), problem.b.item()
    (array(['h', 'h'], dtype='<U1'), 0.5, -2.5)
    """
    rng = check_random_state(random_state)
    many, few = round(3 * n / 4), round(n / 4)
    query_h, reference_h = rng.normal(5, 1, few), rng.normal(5, 1, many)
    query_n, reference_n = rng.normal(0, 2, n - few), rng.normal(0, 2, n - many)
    truth, reference = np.r_[query_h, query_n][:, None], np.r_[reference_h, reference_n][:, None]
    Z = (np.repeat(["h", "n"], [few, n - few]), np.repeat(["h", "n"], [many, n - many]))
    A, b, none = np.array([[0.5]]), np.array([-2.5]), np.empty((0, 1))
    return Problem(2 * truth + 5, reference, *Z, truth, A, b, none, none, *Z)


def make_categorical2d(
    scenario: str = "confounded", *, random_state: RandomState = None
) -> Problem:
    """Make noisy rings in the plane, of which some are raised by 2 ("up"), and a sheared reference.

    The query, the reference and the held-out query have 200 rows each. Half of the rows are "up";
    in the query a quarter, unless there is "no confounding". In the reference, A x + b is observed.
    A is fixed, or in "random transform" a rotation, two scales and another rotation.

    Parameters
    ----------
    scenario : {"no confounding", "confounded", "random transform"}, default="confounded"
        Whether the shares of "up" differ, and whether A is random; see above.
    random_state : int, RandomState or None, default=None
        Seed.

    Returns
    -------
    Problem
        Both domains, their confounders, and the true map.

    Examples
    --------
    >>> from condokit.datasets import make_categorical2d
    >>> make_categorical2d(random_state=0).A
    array([[1.5, 0.7],
           [0.7, 1.5]])
    """
    check_word("'scenario'", scenario, SCENARIOS)
    rng = check_random_state(random_state)
    ups = (100 if scenario == "no confounding" else 50, 100, 100)  # query, heldout, reference
    rings = []
    for up, swapped in zip(ups, (False, False, True)):
        angle = rng.uniform(0, 2 * np.pi, 200)
        ring = np.column_stack([np.cos(angle), np.sin(angle)][:: -1 if swapped else 1])
        ring += rng.normal(0, 0.1, (200, 2))
        ring[:up, 1] += 2
        rings.append(ring)
    rows, b = np.array([[1.5, 0.7], [0.7, 1.5]]), np.array([4.0, 2.0])
    if scenario == "random transform":
        phi, d = rng.uniform(-np.pi, np.pi), rng.uniform(0.5, 1.5, 2)
        theta, b = rng.uniform(-np.pi, np.pi), rng.uniform(2, 4, 2)
        rows = _rotation(theta) * d @ _rotation(phi)  # of row vectors
    query, heldout, reference = rings
    Z_query, _, Z_reference = (np.repeat(["up", "down"], [up, 200 - up]) for up in ups)
    Z = (Z_query, Z_reference)
    truth, truth_heldout = query @ rows + b, heldout @ rows + b
    return Problem(query, reference @ rows + b, *Z, truth, rows.T, b, heldout, truth_heldout, *Z)


@dataclass(frozen=True)
class EEG:
    """Two EEG devices, two groups of people; see `make_eeg`."""

    feature_names: list[str]  #: Names of the columns.
    X_query: Array  #: What device V2 recorded, one row per person.
    X_reference: Array  #: What device V1 recorded from other people.
    seizure_query: Array  #: The confounder: whether a person has seizures.
    seizure_reference: Array  #: The same of the reference people.
    depression_query: Array  #: The label for a downstream model.
    depression_reference: Array  #: The same of the reference people.
    truth: Array  #: What V1 would have recorded from the query people.
    scale: Array  #: Scales of the true map from V2 to V1, by feature.
    offset: Array  #: Offsets of the true map.

    def columns(self) -> dict[str, Array]:
        """Return one table of both devices as columns: device, seizure, depression, features.

        Returns
        -------
        dict of str to ndarray
            The columns by name.
        """
        X = np.vstack([self.X_query, self.X_reference])
        return {
            "device": np.repeat(["v2", "v1"], [len(self.X_query), len(self.X_reference)]),
            "seizure": np.concatenate([self.seizure_query, self.seizure_reference]),
            "depression": np.concatenate([self.depression_query, self.depression_reference]),
            **{name: X[:, j] for j, name in enumerate(self.feature_names)},
        }

    def to_frame(self, backend: Literal["pandas", "polars", "pyarrow"] = "pandas") -> Any:
        """Return `columns` as a data frame.

        Parameters
        ----------
        backend : {"pandas", "polars", "pyarrow"}, default="pandas"
            The library of the data frame.

        Returns
        -------
        data frame
            The people of both devices, one row each.

        Examples
        --------
        >>> from condokit.datasets import make_eeg
        >>> list(make_eeg(random_state=0).to_frame().columns[:4])
        ['device', 'seizure', 'depression', 'eeg_delta_F3']
        """
        import narwhals.stable.v2 as nw

        return nw.from_dict(self.columns(), backend=backend).to_native()


def make_eeg(
    n_query: int = 400,
    n_reference: int = 500,
    *,
    seizure_query: float = 0.6,
    seizure_reference: float = 0.2,
    random_state: int | np.random.Generator | None = None,
) -> EEG:
    """Make the paper's motivating example with its truth: a new EEG device used on other people.

    A hospital replaced device V1 by V2, whose amplifiers have another gain and baseline in each
    channel. V1 was mostly used on healthy volunteers, V2 mostly on people with seizures, which
    raise delta power and lower alpha power. On both devices, depression lowers the alpha power of
    the left frontal channel and raises that of the right one. The features are log band powers of
    eight channels.

    Parameters
    ----------
    n_query, n_reference : int, default=400, 500
        Numbers of people recorded with V2 (query) and V1 (reference).
    seizure_query, seizure_reference : float, default=0.6, 0.2
        Share of people with seizures in each group.
    random_state : int, Generator or None, default=None
        Seed.

    Returns
    -------
    EEG
        Both groups, the truth, and the true map; `to_frame` returns one table of both groups.

    Examples
    --------
    >>> from condokit.datasets import make_eeg
    >>> eeg = make_eeg(random_state=0)
    >>> eeg.X_query.shape, eeg.X_reference.shape
    ((400, 16), (500, 16))
    """
    rng = np.random.default_rng(random_state)
    n = len(_CHANNELS)
    names = [f"eeg_{band}_{channel}" for band in ("delta", "alpha") for channel in _CHANNELS]
    baseline = np.r_[rng.normal(2.0, 0.3, n), rng.normal(1.0, 0.3, n)]
    of_seizure = np.r_[rng.uniform(1.0, 2.0, n), rng.uniform(-1.5, 0.0, n)]
    of_depression = np.zeros(2 * n)
    of_depression[n : n + 2] = (-1.6, 0.8)  # alpha, F3 and F4

    def people(n_people: int, share: float) -> tuple[Array, Array, Array]:
        seizure, depression = rng.random(n_people) < share, rng.random(n_people) < 0.4
        brain = rng.normal(size=(n_people, 1)) * 0.5 + rng.normal(size=(n_people, 2 * n)) * 0.5
        brain *= np.where(seizure, 1.4, 1.0)[:, None]
        X = baseline + brain + np.outer(seizure, of_seizure)
        return X + np.outer(depression, of_depression), seizure, depression

    X, seizure, depression = people(n_reference, seizure_reference)
    truth, seizure_new, depression_new = people(n_query, seizure_query)
    scale, offset = rng.uniform(0.6, 1.6, 2 * n), rng.uniform(-1.5, 1.5, 2 * n)
    labels = (seizure_new, seizure, depression_new, depression)
    return EEG(names, (truth - offset) / scale, X, *labels, truth, scale, offset)


def curve(effect: str, z: Array, sd: float = 2.0) -> tuple[Array, Array]:
    """Return mean and standard deviation of the feature given the confounder z."""
    if effect == "homoscedastic":
        return 4 * z + 1, np.full_like(z, sd)
    if effect == "heteroscedastic":
        return 4 * z + 1, z + 1
    r = np.maximum(z - 5, 0) ** 2
    return 4 * r + 1, r + 1


def _split(z: Array, n_columns: int, rng: Any) -> Array:
    """Return random parts (n_rows, n_columns) that sum to z."""
    cuts = np.sort(rng.uniform(0, 1, (len(z), n_columns - 1)) * z[:, None], axis=1)
    return np.diff(np.column_stack([np.zeros(len(z)), cuts, z]), axis=1)


def _rotation(angle: float) -> Array:
    """Return the matrix of a rotation in the plane."""
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
