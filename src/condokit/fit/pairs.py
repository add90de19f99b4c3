"""Rows measured in both domains: a fitted map refined by regression on them."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from scipy import sparse

from condokit.checks import Array, listing, warn
from condokit.data.arrays import ones_for_zeros
from condokit.data.domains import Domains
from condokit.maps.affine import AffineMap
from condokit.maps.families import MapFamily

_TRUST = (np.inf, 100.0, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.0)
_RIDGES = (0.001, 0.01, 0.03, 0.1, 0.3, 1.0)  # of the summed variance of the query's features
_PULL = 0.1  # towards the unpaired matrix, of their mean variance
_UNMOVED = 0.8  # prior probability that a map learned from many rows without pairs is best
_FOLDS = 10
_ENOUGH = 3  # subjects from which pairs may be judged
_USELESS = 0.95  # held-out error, in standard deviations, from which pairs tell nothing
_EXACT = 1e-12  # held-out squared error, in variances, that is none
_MANY = 8  # rows per feature from which no single one matters much to the first map
_ALIKE = 30.0  # ratio of standard deviations up to which features share a unit


def row_numbers(pairs: Any, tables: Sequence[tuple[str, int]]) -> tuple[Array, Array]:
    """Return two lists of row numbers of equal length; refuse what tables of so many rows lack."""
    try:
        query, reference = (np.asarray(side) for side in pairs)
    except (TypeError, ValueError):
        raise ValueError(
            "'pairs' must be two lists of row numbers, (rows_query, rows_reference), of equal "
            "length."
        ) from None
    for (name, size), side in zip(tables, (query, reference)):
        if side.ndim != 1 or len(side) == 0 or side.dtype.kind not in "iu":
            raise ValueError(f"'pairs' must list row numbers of {name}. Got {side!r:.80}.")
        if side.min() < 0 or side.max() >= size:
            raise ValueError(
                f"'pairs' names row {side.max() if side.max() >= size else side.min()} of {name}, "
                f"which has {size} rows, counted from 0."
            )
    if len(query) != len(reference):
        raise ValueError(
            f"'pairs' lists {len(query)} query rows but {len(reference)} reference rows; the first "
            "of one belongs to the first of the other, and so on."
        )
    return query, reference


def check_pairs(pairs: Any, domains: Domains) -> tuple[Array, Array]:
    """Return the positions of paired rows in the query's and the reference's table."""
    tables = [(table.name, table.n_rows) for table in domains.tables]
    query, reference = row_numbers(pairs, tables)
    if domains.weights is not None:
        both = np.concatenate([query, tables[0][1] + reference])
        if (domains.weights[both] == 0).any():
            raise ValueError("'pairs' names rows whose sample_weight is 0. Leave them out.")
    listed, count = np.unique(np.column_stack([query, reference]), axis=0, return_counts=True)
    if (count > 1).any():
        raise ValueError(
            "'pairs' lists the same rows (query, reference) more than once: "
            f"{listing([tuple(pair) for pair in listed[count > 1].tolist()])}. List them once."
        )
    return query, reference


def refine(
    affine: AffineMap,
    family: Any,
    domains: Domains,
    pairs: tuple[Array, Array],
    refit: Callable[[Array], AffineMap],
) -> tuple[AffineMap, dict[str, Any]]:
    r"""Pull a map towards pairs of rows, as far as held-out pairs advise.

    With pairs (x, y) and a map :math:`f_0` learned without them, a refined map of the family
    makes :math:`\sum_i |A x_i + b - y_i|^2 + \lambda n\, \overline{|A x + b - f_0(x)|^2}` small,
    the mean being over all query rows: a regression in which the first map stands in for
    the rows that have no partner. Or it is ridge regression on the pairs alone. The result is the
    average of :math:`f_0` and of such maps for many :math:`\lambda` and ridges, with weights

    .. math::
        w_k \propto p_k\, e_k^{-m / 2},

    the likelihood of mean squared errors :math:`e_k` on held-out pairs of m subjects, times a
    prior p, 0.8 for an :math:`f_0` of many rows: few pairs move it only if they are clear. Pairs
    that share a row or a group are of one subject and held out together; with few rows `refit`
    then learns the first map again without that subject's. Pairs of fewer than three subjects
    leave :math:`f_0` as it is; so do, if it has many rows, pairs that a constant predicts as well.
    """
    n_query = domains.tables[0].n_rows
    everyone = domains.side(True, np.arange(n_query))
    reference = domains.side(False, np.arange(n_query, len(domains.is_query)))
    X, Y = everyone[pairs[0]], reference[pairs[1]]
    known = ~np.isnan(np.hstack([X, Y])).any(axis=1)
    if not known.any():
        raise ValueError(
            f"All {len(X)} 'pairs' lack the value of a feature. Leave features out, or `pairs`."
        )
    pairs, X, Y = (pairs[0][known], pairs[1][known]), X[known], Y[known]
    everyone, reference = (rows[~np.isnan(rows).any(axis=1)] for rows in (everyone, reference))
    choices = _Choices(family, everyone, reference, X, Y)
    owner = np.arange(len(domains.is_query)) if domains.groups is None else domains.groups
    ends = owner[pairs[0]], owner[n_query + pairs[1]]
    fold, n_subjects = _folds(*ends, np.hstack([X, Y]))
    n_parameters = 1 if family.form == "diagonal" else X.shape[1]
    many = min(len(everyone), len(reference)) >= _MANY * n_parameters
    loss = np.full(len(choices.listed), 0.0 if n_subjects >= _ENOUGH else np.nan)
    for f in range(fold.max() + 1) if n_subjects >= _ENOUGH else ():
        asked = fold == f
        others = ~np.isin(owner, np.concatenate([end[asked] for end in ends]))
        first = affine if many else refit(domains.kept() & others)
        for k, (A, b) in enumerate(choices.solutions(first, ~asked)):
            loss[k] += ((((X[asked] @ A.T + b) - Y[asked]) / choices.unit) ** 2).sum() / Y.size
    weights = choices.without_means(_weights(loss, n_subjects, len(X), many), affine)
    best = int(np.argmax(weights))
    if family.is_rigid:  # an average of rotations is none
        weights = np.eye(len(weights))[best]
    A, b = np.zeros_like(affine.A), np.zeros_like(affine.b)
    for weight, (A_k, b_k) in zip(weights, choices.solutions(affine, fold >= 0)):
        A, b = A + weight * A_k, b + weight * b_k
    scale = np.diag(A).copy() if family.form == "diagonal" else A
    outputs = affine.output_names
    refined = AffineMap(scale, b, affine.feature_names, links=affine.links, output_names=outputs)
    return refined, {
        "n_pairs": len(X),
        "n_subjects": n_subjects,
        "learned_from": choices.listed[best][0],
        "trust": choices.listed[best][1],
        "weight_without": float(weights[0]),
        "held_out_error": float(np.sqrt(weights @ loss)),
        "held_out_error_without": float(np.sqrt(loss[0])),
    }


class _Choices:
    """Ways to learn from pairs: towards the unpaired map more or less, or from pairs alone."""

    def __init__(self, family: Any, everyone: Array, reference: Array, X: Array, Y: Array) -> None:
        self.X, self.Y = X, Y
        self.all_paired = len(everyone) <= len(X)
        self.unit = ones_for_zeros(reference.std(axis=0))
        self.middle = reference.mean(axis=0)
        free = family.form == "matrix" and not family.is_rigid
        self.problems = {
            "unpaired map": _PairRegression(family, everyone, self.unit, free),
            "pairs alone": _PairRegression(family, everyone, self.unit, not _alike(everyone)),
        }
        self.listed = [("unpaired map", trust) for trust in _TRUST]
        if free:
            self.listed += [("pairs alone", ridge) for ridge in _RIDGES]

    def without_means(self, weights: Array, first: AffineMap) -> Array:
        """Leave out a map between different features if it has learned from the pairs' means."""
        alone = np.array([name == "pairs alone" for name, _ in self.listed])
        total = float(weights[alone].sum())
        if not (first.is_rectangular and self.all_paired and total > 0):
            return weights
        return np.where(alone, weights, 0.0) / total

    def solutions(self, first: AffineMap, known: Array) -> Iterator[tuple[Array, Array]]:
        """Yield the map that each of them learns from some of the pairs."""
        for name, amount in self.listed:
            start = first.A, first.b
            if name == "pairs alone":  # around a constant map
                start = np.zeros_like(first.A), self.middle
            yield self.problems[name].solve(*start, self.X[known], self.Y[known], amount)


def _folds(query: Array, reference: Array, values: Array) -> tuple[Array, int]:
    """Return a fold for each pair, and the number of subjects, each of which stays in one fold."""
    # A subject is what pairs connect: rows, or groups of rows. Subjects are dealt out in the order
    # of their values, so that the order in which rows and pairs are listed does not matter.
    size = int(max(query.max(), reference.max())) + 1
    graph = sparse.coo_array((np.ones(len(query)), (query, reference)), shape=(size, size))
    label = sparse.csgraph.connected_components(graph, directed=False)[1][query]
    order = np.lexsort(values.T[::-1])
    _, first, subject = np.unique(label[order], return_index=True, return_inverse=True)
    place = np.empty(len(order), dtype=np.intp)
    place[order] = np.argsort(np.argsort(first))[subject]
    return place % _FOLDS, len(first)


def _weights(loss: Array, n_subjects: int, n_pairs: int, many: bool) -> Array:
    """Return the weights of all choices, the first of which is the map learned without pairs."""
    # pairs that seem not to belong together count for nothing against a map learned from many rows
    unmoved = np.eye(len(loss))[0]
    if n_subjects < _ENOUGH:
        warn(
            "few-pairs",
            "The {n_pairs} pairs are too few to be judged and are not used: give those of "
            "{enough} subjects or more.",
            n_pairs=n_pairs,
            enough=_ENOUGH,
        )
        return unmoved
    if loss.min() > _USELESS**2:
        warn(
            "pairs-unrelated",
            "The {n_pairs} pairs are predicted no better than by a constant (held-out error "
            "{error:.2f} standard deviations){unused}: check that their rows belong together.",
            n_pairs=n_pairs,
            error=np.sqrt(loss.min()),
            unused=" and are not used" if many else "",
        )
        if many:
            return unmoved
    share = _UNMOVED if many else 1 / len(loss)
    prior = np.where(unmoved, share, (1 - share) / (len(loss) - 1))
    weights = prior * np.maximum(loss / max(loss.min(), _EXACT), 1.0) ** (-n_subjects / 2)
    return weights / weights.sum()


def _alike(X: Array) -> bool:
    """Tell whether all features that vary do so by about as much: they share a unit."""
    sizes = X.std(axis=0)
    sizes = sizes[sizes > 0]
    return len(sizes) == 0 or bool(sizes.max() <= _ALIKE * sizes.min())


class _PairRegression:
    """Least squares on pairs, with another map standing in for rows without a partner."""

    def __init__(self, family: MapFamily, everyone: Array, unit: Array, standard: bool) -> None:
        self.family = family
        self.query_unit, self.unit = np.ones(everyone.shape[1]), np.ones(len(unit))
        if standard:
            self.query_unit, self.unit = ones_for_zeros(everyone.std(axis=0)), unit
            everyone = everyone / self.query_unit
        self.middle = everyone.mean(axis=0)
        self.cov = np.cov(everyone.T, bias=True).reshape(len(self.middle), -1)

    def solve(self, A: Array, b: Array, X: Array, Y: Array, trust: float) -> tuple[Array, Array]:
        """Return the map; pseudo-pairs (x, A x + b) have the moments of all query rows."""
        # around a constant map, `trust` is the strength of plain ridge instead
        if np.isinf(trust):
            return A, b
        A, b = A * self.query_unit / self.unit[:, None], b / self.unit
        A, b = self._solve(A, b, X / self.query_unit, Y / self.unit, trust)
        return A * self.unit[:, None] / self.query_unit, b * self.unit

    def _solve(self, A: Array, b: Array, X: Array, Y: Array, trust: float) -> tuple[Array, Array]:
        alone = not A.any()
        amount, trust = (trust, 0.0) if alone else (_PULL / len(self.middle), trust)
        lift = trust * len(X)
        total = len(X) + lift
        image = A @ self.middle + b
        middle_x = (X.sum(axis=0) + lift * self.middle) / total
        middle_y = (Y.sum(axis=0) + lift * image) / total
        left, right, far = X - middle_x, Y - middle_y, self.middle - middle_x
        sizes, diagonal = np.diag(self.cov), self.family.form == "diagonal"
        ridge = amount * (ones_for_zeros(sizes) * len(sizes) if diagonal else sizes.sum())
        gram = left.T @ left + lift * (self.cov + np.outer(far, far)) + ridge * np.eye(len(far))
        cross = right.T @ left + lift * (A @ self.cov + np.outer(image - middle_y, far)) + A * ridge
        family = self.family
        if diagonal:
            scale = np.diag(cross) / np.diag(gram) if family.has_scale else np.ones(len(b))
            fitted = np.diag(np.where(scale > 0, scale, np.diag(A)))
        elif family.is_rigid:
            turn, size, back = np.linalg.svd(cross)
            fitted = (size.sum() / np.trace(gram) if family.has_scale else 1.0) * turn @ back
        else:
            fitted = np.linalg.solve(gram, cross.T).T
            if alone:  # least squares gives back the size that a ridge takes away
                image = left @ fitted.T
                fitted *= np.sum(image * right) / max(np.sum(image**2), 1e-300)
        return fitted, middle_y - fitted @ middle_x
