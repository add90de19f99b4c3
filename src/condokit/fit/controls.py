"""Negative controls: features that nothing of interest moves, so what they share is technical.

A factor model of the controls within domains estimates hidden causes; the map subtracts from every
feature what these explain of it.
"""

import fnmatch
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import fdtrc

from condokit.checks import Array, is_number, listing, refusal, unknown_columns, warn
from condokit.data.arrays import is_constant, ones_for_zeros, sides
from condokit.data.covariates import design, left_of
from condokit.data.study import Study
from condokit.data.subsets import subsample
from condokit.maps.affine import AffineMap

_FEWEST_ROWS = 10  # residual degrees of freedom, after the columns of confounders in both domains
_PERMUTATIONS = 40  # of parallel analysis
_QUANTILE = 0.95  # of eigenvalues by chance, which those of factors must exceed
_LARGEST_SHARE = 0.95  # communality of a control: at 1 its own variance, a divisor, would be 0
_STEPS = 200  # at most, of the iteration for communalities
_ROWS_OF_FACTORS = 5000  # rows from which the number of factors is determined
_LEAST_VARIANCE = 0.1  # of a factor within one domain, in units of its variance in both
_LEVEL, _MUCH = 0.01, 0.05  # of a warning that confounders explain controls: level, share explained
_BLOCK = 1 << 24  # values of features that are read at a time (128 MB)


@dataclass(frozen=True)
class Controls:
    """The common factors of negative controls within domains, and maps that subtract them."""

    places: tuple[int, ...]  # positions of the controls among the features
    rank: int  # number of factors
    shared: float  # mean share of the controls' variance within domains that factors explain
    map: AffineMap  # of all features, for query rows
    reference_map: AffineMap  # the same for reference rows

    @classmethod
    def of(cls, domains: Study, places: tuple[int, ...], rank: int | None = None) -> "Controls":
        r"""Learn the maps that subtract what the common factors of the controls explain.

        Let R be the standardised residuals of the controls, of shape (n_rows, n_controls), after
        regression on their means and the confounders within domains. A factor model with `rank`
        factors (if None, by parallel analysis) has loadings L and own variances :math:`\Psi`.
        With :math:`G = \Psi^{-1} L (L' \Psi^{-1} L)^{-1}`, Bartlett's factor scores are R G. The
        coefficients :math:`\alpha` of all features on the factors are corrected for the error of
        the scores (see `_loadings`), so that noise in the controls does not weaken them. The map
        is :math:`x - \alpha' G' (x_c - \bar x_{c, r})` with the controls' means
        :math:`\bar x_{c, r}` in the reference; the controls themselves are only shifted to these.
        """
        used, own = np.flatnonzero(domains.kept()), domains.of(np.array(places))
        X, query = own.rows(used), domains.is_query[used]
        counts = np.ones(len(used)) if domains.weights is None else domains.weights[used]
        _refuse(np.isnan(X).any(axis=0), own, "must have values in all rows, but {names} has not.")
        root, D = np.sqrt(counts)[:, None], design(domains.confounders, used, 1)
        dof = float(counts.sum()) - 2 * D.shape[1]  # each domain has its own coefficients
        if dof < _FEWEST_ROWS:
            text = "{@'controls'} need {n} more rows to show what they have in common."
            raise refusal(text, n=int(np.ceil(_FEWEST_ROWS - dof)))
        off_means, R = (
            left_of(root * np.hstack([d * side[:, None] for _, side in sides(query)]), root * X)
            for d in (D[:, :1], D)
        )
        unit = np.sqrt((R**2).sum(axis=0) / dof)
        flat = is_constant(unit, np.abs(X).max(axis=0), 1e-9)
        _refuse(flat, own, "{names} are constant within domains, and carry no information.")
        rank = parallel_rank(R / unit) if rank is None else rank
        if rank == 0:
            text = "{@'controls'} have nothing in common within domains (parallel analysis), so "
            raise refusal(text + "that no hidden cause shows in them.")
        L, noise = factor((R / unit).T @ (R / unit) / dof, rank)
        of_scores = np.linalg.inv((L.T / noise) @ L)  # error variance
        G = L / noise[:, None] @ of_scores / unit[:, None]
        if domains.confounders:
            _warn_if_moved(off_means, R, 2 * D.shape[1] - 2, dof, domains)
        mean, there = (counts[side] @ X[side] / counts[side].sum() for _, side in sides(query))
        right, chosen, maps = np.zeros((domains.n_features, rank)), list(places), []
        right[chosen], scores = G, R @ G / root * np.sqrt(counts.sum() / dof)
        alphas = _loadings(domains, used, scores, counts, of_scores)
        for alpha, shift in zip(alphas, (there - mean, 0.0)):
            alpha[chosen] = 0.0
            offset = alpha @ (G.T @ there)
            offset[chosen] = shift
            names, ones = domains.tables[0].feature_names, np.ones(len(right))
            maps.append(AffineMap(ones, offset, names, left=-alpha, right=right))
        return cls(places, rank, float(1 - noise.mean()), *maps)

    def others(self, domains: Study) -> Study:
        """Return the domains without the controls, and with their factors subtracted."""
        rest = np.setdiff1d(np.arange(domains.n_features), self.places)
        tables, start = [], 0
        for table in domains.tables:
            query = domains.is_query[start : start + table.n_rows, None]
            start += table.n_rows
            freed = self.map.apply(table), self.reference_map.apply(table)
            tables.append(table.replaced(np.where(query, *freed)))
        return replace(domains, tables=tuple(tables)).of(rest)

    def before(self, affine: AffineMap) -> AffineMap:
        """Return the map that subtracts the factors first and then applies `affine`.

        `affine` maps the other features; the result takes the controls as well.
        """
        d, dense = self.map.n_features_in_, affine.kind == "dense"
        rest = np.setdiff1d(np.arange(d), self.places)
        grown: dict[str, Any] = {"scale": np.eye(d) if dense else np.ones(d), "offset": np.zeros(d)}
        for name, part in affine.arrays().items():
            if name not in grown:
                grown[name] = np.zeros((d, part.shape[1]))
            grown[name][np.ix_(rest, rest) if dense and name == "scale" else rest] = part
        return AffineMap(**grown, feature_names=self.map.feature_names).compose(self.map)


def _refuse(wrong: Any, controls: Study, why: str) -> None:
    """Raise an error about the controls that are marked in `wrong`, if there are any."""
    if wrong.any():
        names = listing(controls.tables[0].names_of(wrong))
        raise refusal("{@'controls'} " + why, names=names)


def find_controls(controls: Any, domains: Study, map: Any) -> tuple[int, ...]:
    """Return the sorted positions of the controls, given by names, patterns or positions."""
    labels, places = domains.tables[0].labels, set[int]()
    if getattr(map, "links", None) is not None:
        raise refusal("{@'controls'} do not go with links: take logarithms and the like before.")
    if domains.is_rectangular:
        raise refusal("{@'controls'} do not work between different features.")
    for want in controls if np.ndim(controls) else [controls]:
        if is_number(want, (int, np.integer)) and -len(labels) <= want < len(labels):
            hits = [labels[want]]
        else:
            hits = [want] if want in labels else fnmatch.filter(labels, str(want))
        if not hits:
            raise unknown_columns("controls", [want], labels, "the list of features")
        places.update(labels.index(hit) for hit in hits)
    if not 0 < len(places) < len(labels):
        text = "{@'controls'} names {n} of {all} features. Name those that nothing of interest "
        raise refusal(text + "moves, and leave some to study.", n=len(places), all=len(labels))
    return tuple(sorted(places))


def parallel_rank(R: Array) -> int:
    """Return the number of factors by Horn's parallel analysis.

    Factors count as long as their eigenvalue exceeds the 95% quantile of that of the same rank
    after every column was permuted separately, which destroys all correlation.
    """
    k, rng = R.shape[1], np.random.default_rng(0)
    R = R[subsample(len(R), _ROWS_OF_FACTORS)]
    sizes, *chance = (
        np.linalg.eigvalsh(X.T @ X)[::-1]
        for X in (R, *(rng.permuted(R, axis=0) for _ in range(_PERMUTATIONS)))
    )
    above = np.append(sizes > np.quantile(chance, _QUANTILE, axis=0), False)
    return 1 if k == 1 else min(int(np.argmin(above)), k // 2)


def factor(correlation: Array, rank: int) -> tuple[Array, Array]:
    """Return loadings (k, rank) and own variances (k,) by iterated principal-axis factoring.

    Starting values of the communalities are the largest absolute correlations.
    """
    k = len(correlation)
    if k == 1:
        return np.ones((1, 1)), np.full(1, 1e-9)  # a single control cannot show its own error
    shared = np.abs(correlation - np.eye(k)).max(axis=0)
    for _ in range(_STEPS):
        shared = np.minimum(shared, _LARGEST_SHARE)
        size, axes = np.linalg.eigh(correlation - np.diag(1 - shared))
        L = axes[:, -rank:] * np.sqrt(np.maximum(size[-rank:], 1e-6))
        last, shared = shared, (L**2).sum(axis=1)
        if np.abs(np.minimum(shared, _LARGEST_SHARE) - last).max() < 1e-6:
            break
    return L, 1 - np.minimum(shared, _LARGEST_SHARE)


def _loadings(
    domains: Study, used: Array, scores: Array, counts: Array, error: Array
) -> list[Array]:
    r"""Return the coefficients (n_features, rank) of all features on the factors, by domain.

    Regression on the scores would give coefficients that are too small, since scores have an error:
    its covariance `error` is subtracted from that of the scores. The query and the reference may
    have different gains, so each has its own coefficients. These are pulled towards their pooled
    value: the share :math:`1 - 1 / F` of their difference is kept, where F is the mean of
    :math:`\mathrm{difference}^2 / v` over features and factors, and v is the difference's variance.
    """
    d, step, found = domains.n_features, max(_BLOCK // max(len(used), 1), 1), []
    for _, side in sides(domains.is_query[used]):
        S, n, parts = scores[side], counts[side], []
        size, axes = np.linalg.eigh((S.T * n) @ S / n.sum() - error)
        true = (axes / np.maximum(size, _LEAST_VARIANCE)) @ axes.T  # inverse variance
        S = S @ true
        for start in range(0, d, step):
            X = domains.of(np.arange(start, min(start + step, d))).rows(used[side])
            known = np.isfinite(X)
            total, X = ones_for_zeros(n @ known), np.where(known, X, 0.0)
            X = np.where(known, X - n @ X / total, 0.0)  # a missing value is the mean
            own = (S.T * n) @ X / total
            noise = ((S**2).T * n) @ X**2 / total - own**2  # variance of the products S X
            parts.append(np.stack([own.T, (noise / total).T]))
        found.append(np.concatenate(parts, axis=1))
    (own, own_error), (other, other_error) = found
    both = np.maximum(own_error + other_error, 1e-300)
    kept = 1 - 1 / max(float(np.mean((own - other) ** 2 / both)), 1.0)
    pooled = other + other_error / both * (own - other)
    return [pooled + kept * (alpha - pooled) for alpha in (own, other)]


def _warn_if_moved(before: Array, after: Array, k: int, dof: float, domains: Study) -> None:
    """Warn if confounders explain controls within domains, by F tests with `k` and `dof` degrees.

    `before` are residuals of the controls off their means alone, `after` also off the confounders.
    """
    total, left = (before**2).sum(axis=0), (after**2).sum(axis=0)
    share = 1 - left / ones_for_zeros(total)
    p = fdtrc(k, dof, np.maximum(total - left, 0.0) / k / np.maximum(left / dof, 1e-300))
    moved = (p * len(p) < _LEVEL) & (share > _MUCH)
    if moved.any():
        text = "Confounders ({names}) explain up to {share:.0%} of {n} of {all} {@`controls`} "
        text += "within domains. Controls are features that nothing of interest moves: what is "
        text += "taken off by these may be real."
        names = listing(c.name for c in domains.confounders)
        fields = {"n": int(moved.sum()), "all": len(moved), "share": share[moved].max()}
        warn("controls-move", text, names=names, **fields)
