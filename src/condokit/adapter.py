"""The estimator in which map, prior, conditional and divergence meet."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn import get_config
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.utils.validation import check_is_fitted

from condokit._validation import (
    Array,
    IdentifiabilityWarning,
    LowOverlapWarning,
    NoOverlapError,
    listing,
    pick,
)
from condokit.conditionals import (
    CONDITIONALS,
    BaseConditional,
    SmoothConditional,
    Stratified,
)
from condokit.divergences import DIVERGENCES, BaseDivergence, RowDivergence, Solution
from condokit.domains import Domains, Moments, Strata, Support
from condokit.frames import Table
from condokit.intake import from_pair, from_table, is_reference_row
from condokit.maps import MAPS, AffineMap, DiagonalFamily, LocationScale, MapFamily
from condokit.overlap import Columns, Overlap, measure_overlap
from condokit.priors import PRIORS, BasePrior
from condokit.selection import CANDIDATES, average_candidates
from condokit.shrinkage import Kept, keep, share_variances, shrink
from condokit.smoothing import Covariates

_ROUNDING = 1e-13


class ConDoAdapter(TransformerMixin, BaseEstimator):
    r"""Make query features comparable with a reference, given what confounds the two.

    The adapter learns a map from query to reference features by comparing the two domains *given*
    the confounders, so that a difference in confounders (more patients in one domain) is not
    taken for a technical one. The map is then applied to features alone.

    Parameters
    ----------
    map : {"identity", "shift", "location-scale", "auto"} or MapFamily, default="location-scale"
        The family of maps to choose from. "auto" averages identity, shift, gain (a scale without
        offset) and location-scale by their evidence, for every feature; see `report_`.
    divergence : {"auto", "reverse-kl", "ot", "likelihood"} or BaseDivergence, default="auto"
        What the map makes small. "auto" is "ot" without confounders, "reverse-kl" with categorical
        ones, and "likelihood" if any is continuous.
    prior : {"product", "paper", "uniform"} or BasePrior, default="product"
        The weight of each confounder value in the comparison.
    conditional : str or BaseConditional, default="auto"
        The estimator of features given confounders, for the divergences that need one:
        "stratified" for categories, "kernel", "splines" or "chained" (needs LightGBM) for
        confounders of any kind. "auto" is "stratified".
    reference : label or None, default=None
        The label of the domain to map to. May be left out when the labels are "query" and
        "reference"; not used by `fit_pair`.
    categorical : list of names or positions, or None, default=None
        Numeric confounders whose numbers are categories. Strings, booleans and categories are
        always categorical, and so is a numeric confounder with exactly two values.
    shrinkage : "auto", None or float in [0, 1], default="auto"
        "auto" shares strength across strata and features and pulls the map to the identity, by
        an amount that the data choose and that fades as rows are added. None is the plain
        estimator. A number fixes the pull: 0 is the plain estimator, 1 the identity.
    missing : {"raise", "drop", "impute"}, default="raise"
        What to do with missing confounders: refuse, leave the rows out, or fill in the median or
        the most frequent level of the row's domain. Counted in `report_`.
    warn_overlap : float, default=0.4
        Warn if the overlap coefficient of the confounders is below this.
    min_overlap : float, default=0.05
        Refuse if it is below this; 0 never refuses.

    Attributes
    ----------
    map_ : AffineMap
        The map from query to reference features.
    support_ : Support
        The confounder values compared, with weights and counts, and those left out.
    overlap_ : Overlap
        How far the confounders of the two domains overlap, together and one by one.
    divergence_, conditional_ : str or instance
        What was used; the names that "auto" stands for.
    map_se_ : dict of {"scale", "offset"} to ndarray, or None
        Sampling standard errors, before the map is pulled to the identity or averaged.
    report_ : dict
        Facts of the fit: rows compared, iterations, how much of the plain estimate was kept,
        constant features, missing confounders and, with map="auto", the candidates.
    n_features_in_ : int
        Number of features; of columns, for an array with `features`.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the features, if they have any.

    See Also
    --------
    AffineMap : the fitted map, which can be saved and used without the adapter.

    Examples
    --------
    >>> from condokit import ConDoAdapter, datasets
    >>> eeg = datasets.make_eeg(random_state=0)
    >>> adapter = ConDoAdapter().fit_pair(
    ...     eeg.X_query, eeg.X_reference, eeg.seizure_query, eeg.seizure_reference
    ... )
    >>> adapted = adapter.transform(eeg.X_query)
    >>> bool(abs(adapted - eeg.truth).mean() < 0.1 * abs(eeg.X_query - eeg.truth).mean())
    True
    """

    def __init__(
        self,
        map: Any = "location-scale",
        *,
        divergence: Any = "auto",
        prior: Any = "product",
        conditional: Any = "auto",
        reference: Any = None,
        categorical: Any = None,
        shrinkage: Any = "auto",
        missing: str = "raise",
        warn_overlap: float = 0.4,
        min_overlap: float = 0.05,
    ) -> None:
        self.map = map
        self.divergence = divergence
        self.prior = prior
        self.conditional = conditional
        self.reference = reference
        self.categorical = categorical
        self.shrinkage = shrinkage
        self.missing = missing
        self.warn_overlap = warn_overlap
        self.min_overlap = min_overlap

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        domain: Any = None,
        confounders: Any = None,
        features: Any = None,
        groups: Any = None,
        sample_weight: Any = None,
    ) -> ConDoAdapter:
        """Learn the map from one table whose rows belong to two domains.

        Parameters
        ----------
        X : array, pandas or polars DataFrame, or pyarrow Table of shape (n_rows, n_columns)
            Rows of both domains.
        y : ignored
            For scikit-learn's sake.
        domain : array-like of shape (n_rows,) or str
            The domain of each row, or the column of X that holds it. Exactly two labels.
        confounders : array-like, data frame, dict, str or list of str, default=None
            What differs between the domains for reasons that are not technical: values, or the
            names of columns of X.
        features : list of str or int, default=None
            Feature columns: names, patterns such as "eeg_*", or positions. Default: all others.
        groups : array-like of shape (n_rows,) or str, default=None
            The subject of each row. Rows of one subject count as less evidence than rows of many.
        sample_weight : array-like of shape (n_rows,) or str, default=None
            Weights that count rows: 2 stands for two equal rows.

        Returns
        -------
        ConDoAdapter
            The fitted adapter itself.
        """
        domains = from_table(
            X,
            domain=domain,
            confounders=confounders,
            features=features,
            groups=groups,
            sample_weight=sample_weight,
            reference=self.reference,
            categorical=self.categorical,
            missing=self.missing,
        )
        table = domains.tables[0]
        by_place = features is not None and table.columns is None
        return self._fit(domains, list(table.positions) if by_place else None)

    def fit_pair(
        self,
        X_query: Any,
        X_reference: Any,
        Z_query: Any = None,
        Z_reference: Any = None,
        *,
        groups: Any = None,
        sample_weight: Any = None,
    ) -> ConDoAdapter:
        """Learn the map from two tables, one for each domain.

        Parameters
        ----------
        X_query, X_reference : array or data frame of shape (n_rows, n_features)
            Features of each domain; columns are matched by name where they have names.
        Z_query, Z_reference : array-like, data frame or dict, default=None
            Confounders of each domain.
        groups, sample_weight : pair of array-like, default=None
            As in `fit`, as a pair (query, reference).

        Returns
        -------
        ConDoAdapter
            The fitted adapter itself.
        """
        if self.reference is not None:
            raise ValueError(
                f"'reference' is {self.reference!r}, but fit_pair takes the reference as its "
                "second table. Leave `reference` out, or use fit with one table."
            )
        domains = from_pair(
            X_query,
            X_reference,
            Z_query,
            Z_reference,
            groups,
            sample_weight,
            self.categorical,
            self.missing,
        )
        return self._fit(domains, None)

    def transform(self, X: Any, *, domain: Any = None) -> Any:
        """Map query rows to the reference; no confounders are needed.

        Parameters
        ----------
        X : array or data frame of shape (n_rows, n_columns)
            Rows to map. Features are found by name; other columns are ignored.
        domain : array-like of shape (n_rows,) or str, default=None
            The domain of each row; rows of the reference then pass unchanged. Without it, all rows
            are query rows.

        Returns
        -------
        array or data frame of shape (n_rows, n_features_in_)
            The mapped features, in the container of X.
        """
        check_is_fitted(self)
        return self._apply(self.map_, X, domain, self._sklearn_wants_container())

    def inverse_transform(self, X: Any, *, domain: Any = None) -> Any:
        """Map rows from the reference's units back to the query's; see `transform`."""
        check_is_fitted(self)
        return self._apply(self.map_.inverse(), X, domain, False)

    def fit_transform(
        self,
        X: Any,
        y: Any = None,
        *,
        domain: Any = None,
        confounders: Any = None,
        features: Any = None,
        groups: Any = None,
        sample_weight: Any = None,
    ) -> Any:
        """Fit, then map the query rows and leave the reference rows as they are, in order.

        The parameters are those of `fit`, the result that of `transform`.
        """
        self.fit(
            X,
            y,
            domain=domain,
            confounders=confounders,
            features=features,
            groups=groups,
            sample_weight=sample_weight,
        )
        return self.transform(X, domain=domain)

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """Return the names of the features, which the map does not change."""
        check_is_fitted(self)
        names = getattr(self, "feature_names_in_", None)
        if names is None:
            chosen = self._columns or range(self.n_features_in_)
            if input_features is None:
                input_features = [f"x{j}" for j in range(self.n_features_in_)]
            elif len(input_features) != self.n_features_in_:
                raise ValueError(
                    f"input_features should have length equal to number of features "
                    f"({self.n_features_in_}), got {len(input_features)}."
                )
            return np.asarray([input_features[j] for j in chosen], dtype=object)
        if input_features is not None and not set(names) <= set(input_features):
            raise ValueError("input_features is not equal to feature_names_in_.")
        return np.asarray(names, dtype=object)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def _fit(self, domains: Domains, columns: list[int] | None) -> ConDoAdapter:
        names = self._resolve(domains)
        family, prior, conditional, divergence = self._ingredients(*names)
        amount = self._shrinkage()
        kernel = _user_kernel(prior, conditional)
        strata = (domains if kernel is None else replace(domains, confounders=[])).strata()
        support = prior.support(domains, strata)
        if support.dropped:
            _warn_dropped(support)
        by_rows = isinstance(divergence, RowDivergence)
        smooth = not by_rows and isinstance(conditional, SmoothConditional)
        if domains.continuous or by_rows or smooth:
            used, covariates = _covariates(domains, strata, support, kernel is not None)
        overlap = measure_overlap(
            strata,
            _columns(domains, covariates, used) if domains.continuous and not kernel else None,
        )
        self._check_overlap(overlap)
        table = domains.tables[0]
        weights = support.weights
        if smooth:
            rows, weights = prior.points(covariates, domains.is_query[used])
            query, reference = _smoothed(conditional, domains, used, covariates, rows)
        else:
            # for a row divergence: what is constant, and whether there are rows enough
            strata_only = Stratified() if by_rows else conditional
            if domains.continuous and not by_rows:
                raise ValueError(
                    f"divergence={names[0]!r} with conditional='stratified' needs categorical "
                    f"confounders, but {listing([c.name for c in domains.continuous])} is "
                    "continuous. Use divergence='likelihood', conditional='kernel', or list it in "
                    "`categorical`."
                )
            query, reference = strata_only.moments(domains, strata, support)
        query, reference, flat = _without_flat(family, query, reference, table)
        unit = np.sqrt(weights @ reference.var)
        if by_rows:
            solution = divergence.minimize(family, domains, covariates, used)
            solution = _with_groups(solution, support, query, reference)
        else:
            if amount == "auto" and not smooth:
                query, reference = share_variances(query), share_variances(reference)
            solution = divergence.minimize(family, query, reference, weights)
            if smooth:  # neighbouring points share rows, so their errors are not known
                solution = replace(solution, se_log_scale=None, se_image=None)
        solution = _leave_scale(solution, flat)
        errors = _standard_errors(solution)
        all_kept = np.ones(domains.n_features)
        kept = Kept(all_kept, all_kept)
        candidates: dict[str, Any] = {}
        if _is_auto(self.map):
            solution, candidates = _averaged(solution, support, table)
        elif amount == "auto":
            solution, kept = shrink(solution, unit)
        elif amount:
            kept = Kept((1 - amount) * all_kept, (1 - amount) * all_kept)
            solution = keep(solution, kept)

        self.map_ = AffineMap(solution.scale, solution.offset, table.feature_names)
        self.map_se_ = errors
        self.support_ = support
        self.overlap_ = overlap
        self.divergence_, self.conditional_ = names
        self._columns = columns
        self.report_ = {
            "rows_query": float(support.count_query.sum()),
            "rows_reference": float(support.count_reference.sum()),
            "n_iter": solution.n_iter,
            "kept_log_scale": float(kept.log_scale.mean()),
            "kept_shift": float(kept.shift.mean()),
            "constant_features": _names(table, flat),
            "missing_confounders": domains.missing,
            **candidates,
        }
        self._labels = domains.labels
        self.n_features_in_ = domains.n_features
        if self._columns is not None:
            self.n_features_in_ = len(Table(table.native).positions)
        if table.feature_names is not None:
            self.feature_names_in_ = np.asarray(table.feature_names, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        return self

    def _resolve(self, domains: Domains) -> tuple[Any, Any]:
        """Return divergence and conditional, with "auto" replaced by what it stands for."""
        divergence, conditional = self.divergence, self.conditional
        if _is_auto(divergence):
            if domains.continuous:
                divergence = "likelihood"
            else:
                divergence = "reverse-kl" if domains.confounders else "ot"
        return divergence, "stratified" if _is_auto(conditional) else conditional

    def _ingredients(
        self, divergence: Any, conditional: Any
    ) -> tuple[MapFamily, BasePrior, BaseConditional, BaseDivergence]:
        """Return fresh copies of the four ingredients."""
        family = LocationScale() if _is_auto(self.map) else pick("map", self.map, MAPS, MapFamily)
        return (
            clone(family),
            clone(pick("prior", self.prior, PRIORS, BasePrior)),
            clone(pick("conditional", conditional, CONDITIONALS, BaseConditional)),
            clone(pick("divergence", divergence, DIVERGENCES, BaseDivergence)),
        )

    def _check_overlap(self, overlap: Overlap) -> None:
        """Refuse or warn if there is little to compare, naming the confounders to blame."""
        worst = [f"{name} {c:.2f}" for name, c in overlap.by_confounder.items() if c < 0.4]
        blame = f" (alone: {', '.join(worst)})" if worst else ""
        facts = f"the overlap coefficient of the confounders is {overlap.coefficient:.2f}{blame}"
        if overlap.coefficient < self.min_overlap:
            raise NoOverlapError(
                f"{facts}, below min_overlap={self.min_overlap}. Adaptation compares like with "
                "like: leave a confounder out, add samples, or lower min_overlap."
            )
        if overlap.coefficient < self.warn_overlap:
            warnings.warn(
                f"{facts}: the comparison rests on about {overlap.effective_query:.0f} query and "
                f"{overlap.effective_reference:.0f} reference rows, and standard errors do not "
                "show how far the rest is extrapolated.",
                LowOverlapWarning,
                stacklevel=4,
            )

    def _shrinkage(self) -> Any:
        amount = self.shrinkage
        if amount is None or (isinstance(amount, str) and amount == "auto"):
            return amount
        is_number = isinstance(amount, int | float | np.number) and not isinstance(amount, bool)
        if is_number and 0 <= amount <= 1:
            return float(amount)
        raise ValueError(
            f"'shrinkage' must be 'auto', None or a number from 0 to 1. Got {amount!r} instead."
        )

    def _apply(self, affine: AffineMap, X: Any, domain: Any, as_array: bool) -> Any:
        everything = Table(X)
        owner = type(self).__name__
        names = getattr(self, "feature_names_in_", None)
        if names is not None and everything.columns is None:
            warnings.warn(
                f"X does not have valid feature names, but {owner} was fitted with feature names",
                UserWarning,
                stacklevel=4,
            )
        elif names is None and everything.columns is not None:
            warnings.warn(
                f"X has feature names, but {owner} was fitted without feature names",
                UserWarning,
                stacklevel=4,
            )
        if self._columns is not None and everything.n_features == len(self._columns):
            table = everything.select(None)  # the features alone, as transform returns them
        else:
            table = everything.match(names, self.n_features_in_, owner)
            if self._columns is not None:
                table = everything.select(self._columns)
        if table.n_rows == 0:
            raise ValueError(
                f"Found array with 0 sample(s) (shape=(0, {table.n_features})) while a minimum of "
                "1 is required: X is empty."
            )
        result = affine.apply(table)
        if domain is not None:
            unchanged = is_reference_row(domain, everything, self._labels)
            for rows, chunk in table.chunks():
                mine = unchanged[rows]
                result[rows][mine] = chunk[mine]
        return result if as_array else table.rebuild(result)

    def _sklearn_wants_container(self) -> bool:
        """Tell whether set_output will put the result into a container."""
        configured = getattr(self, "_sklearn_output_config", {})
        wanted = configured.get("transform") or get_config()["transform_output"]
        return bool(wanted != "default")


def _is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == "auto"


def _user_kernel(prior: BasePrior, conditional: BaseConditional) -> Any:
    """Return the user's kernel on confounders; both ingredients need the same one."""
    kernels = [getattr(ingredient, "kernel", None) for ingredient in (prior, conditional)]
    if (kernels[0] is None) != (kernels[1] is None):
        raise ValueError(
            "A kernel on confounders must be given to both prior and conditional: "
            "prior=ProductPrior(kernel=k), conditional=KernelSmoother(kernel=k)."
        )
    return kernels[0]


def _smoothed(
    conditional: SmoothConditional,
    domains: Domains,
    used: Array,
    covariates: Covariates,
    rows: Array,
) -> tuple[Moments, Moments]:
    """Return the moments of (query, reference) at the confounders of some rows."""
    X, is_query, at = domains.rows(used), domains.is_query[used], covariates.take(rows)
    query, reference = (
        conditional.moments_at(X[side], covariates.take(side), at) for side in (is_query, ~is_query)
    )
    return query, reference


def _with_groups(
    solution: Solution, support: Support, query: Moments, reference: Moments
) -> Solution:
    """Widen standard errors by what rows of the same subjects are short of independent ones."""
    rows = support.count_query.sum() / query.count.sum()
    rows = (rows + support.count_reference.sum() / reference.count.sum()) / 2
    if rows <= 1 or solution.se_log_scale is None or solution.se_image is None:
        return solution
    widen = float(np.sqrt(rows))
    return replace(
        solution,
        se_log_scale=widen * solution.se_log_scale,
        se_image=widen * solution.se_image,
    )


def _covariates(
    domains: Domains, strata: Strata, support: Support, as_given: bool
) -> tuple[Array, Covariates]:
    """Return the rows compared and their confounders as numbers, or also as they were given."""
    place = np.full(len(strata.levels) + 1, -1, dtype=np.int32)
    place[support.index] = np.arange(len(support.index), dtype=np.int32)
    category = place[strata.codes]
    used = np.flatnonzero(category >= 0)
    Z = np.empty((len(used), len(domains.continuous)))
    for j, confounder in enumerate(domains.continuous):
        assert confounder.values is not None
        z = confounder.values[used]
        Z[:, j] = (z - z.mean()) / max(float(z.std()), 1e-300)
    objects = None
    if as_given:
        columns = [c.as_given()[used] for c in domains.confounders]
        objects = columns[0] if len(columns) == 1 else np.stack(columns, axis=1)
        Z = np.empty((len(used), 0))
    return used, Covariates(Z, category[used], len(support.index), objects)


def _columns(domains: Domains, covariates: Covariates, used: Array) -> Columns:
    kept = domains.is_query if domains.keep is None else domains.is_query[domains.keep]
    names = [confounder.name for confounder in domains.continuous]
    n_query = int(kept.sum())
    return Columns(names, covariates, domains.is_query[used], n_query, len(kept) - n_query)


def _averaged(
    solution: Solution, support: Support, table: Table
) -> tuple[Solution, dict[str, Any]]:
    """Average the candidate maps, and say which of them each feature's map mostly is."""
    n_rows = float(support.count_query.sum() + support.count_reference.sum())
    solution, weights = average_candidates(solution, n_rows)
    chosen = [CANDIDATES[k] for k in weights.argmax(axis=1)]
    return solution, {
        "candidates": dict(zip(CANDIDATES, weights.mean(axis=0).tolist())),
        "chosen": dict(zip(table.labels, chosen)),
        "candidate_weights": weights,
    }


def _names(table: Table, chosen: Array) -> list[str]:
    """Return the names of the chosen features."""
    return list(np.asarray(table.labels, dtype=object)[chosen]) if chosen.any() else []


def _without_flat(
    family: MapFamily, query: Moments, reference: Moments, table: Table
) -> tuple[Moments, Moments, Array]:
    """Mark features that are constant within strata in a domain, and give them unit variances."""
    has_scale = not isinstance(family, DiagonalFamily) or family.has_scale
    single = [
        name
        for name, moments in (("query", query), ("reference", reference))
        if not (moments.dof > 0).any()
    ]
    if single and has_scale:
        raise ValueError(
            f"The {' and the '.join(single)} domain has only 1 sample in each stratum compared, so "
            "a scale cannot be learned. Add rows, merge strata, or use map='shift'."
        )
    flat = _is_flat(query) | _is_flat(reference)
    if not flat.any():
        return query, reference, flat
    if has_scale:
        warnings.warn(
            f"Constant within strata in a domain, so only shifted: {listing(_names(table, flat))}.",
            IdentifiabilityWarning,
            stacklevel=4,
        )
    query, reference = (
        replace(
            moments,
            var=np.where(flat, 1.0, moments.var),
            precision=np.where(flat, 1.0, moments.precision),
        )
        for moments in (query, reference)
    )
    return query, reference, flat


def _is_flat(moments: Moments) -> Array:
    """Mark features whose spread within strata is nothing but rounding."""
    rounding = _ROUNDING * np.abs(moments.mean).max(axis=0)
    return moments.var.max(axis=0) <= rounding**2


def _leave_scale(solution: Solution, flat: Array) -> Solution:
    """Give flat features the scale one, and no standard error: none is known."""
    if not flat.any():
        return solution
    errors: dict[str, Any] = {
        name: np.where(flat, 0.0, error)
        for name in ("se_log_scale", "se_image")
        if (error := getattr(solution, name)) is not None
    }
    return replace(solution, scale=np.where(flat, 1.0, solution.scale), **errors)


def _standard_errors(solution: Solution) -> dict[str, Array] | None:
    """Return the errors of scale and offset; log m and the image of the centre are independent."""
    if solution.se_log_scale is None or solution.se_image is None:
        return None
    scale = solution.scale * solution.se_log_scale
    return {"scale": scale, "offset": np.hypot(solution.se_image, solution.centre * scale)}


def _warn_dropped(support: Support) -> None:
    rows = [sum(row[key] for row in support.dropped) for key in ("n_query", "n_reference")]
    values = [tuple(row[name] for name in support.names) for row in support.dropped]
    warnings.warn(
        f"{len(values)} confounder value(s) occur in one domain only and are not compared: "
        f"{listing(values)} ({rows[0]:g} query and {rows[1]:g} reference rows).",
        LowOverlapWarning,
        stacklevel=4,
    )
