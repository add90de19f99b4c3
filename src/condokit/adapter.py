"""`ConDoAdapter`: the estimator of a map between two domains."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeVar, overload

import numpy as np
from narwhals.stable.v2.typing import IntoDataFrame
from sklearn.utils.validation import check_is_fitted

from condokit import checks
from condokit.checks import Array, Note, check_integer, listing, noting, warn
from condokit.compare.priors import Prior
from condokit.conditionals.base import Conditional
from condokit.data.arrays import computing
from condokit.data.blocks import Blocks
from condokit.data.measurements import warn_of_columns
from condokit.data.reader import read_pair, read_two
from condokit.data.roles import Roles, column_values, is_reference_row, remembered
from condokit.data.study import Study
from condokit.data.tables import Table
from condokit.divergences.base import Divergence
from condokit.fit.choose import find
from condokit.fit.estimator import Adapter, how_read, is_routed
from condokit.fit.fit_map import from_sample
from condokit.fit.ingredients import takes_any_features
from condokit.fit.pairs import check_pairs
from condokit.fit.record import FitReport, account_of_map
from condokit.maps.base import Map
from condokit.maps.families import MapFamily
from condokit.maps.lazily import map_lazily_but
from condokit.maps.profile import profile
from condokit.maps.standard_errors import StandardErrors
from condokit.solvers.lbfgs import threads, watched
from condokit.statistics.domains import as_domains
from condokit.statistics.gather import Statistics

T = TypeVar("T", bound="IntoDataFrame | Array")


class ConDoAdapter(Adapter):
    r"""Make query features comparable with a reference, given what confounds the two.

    The adapter learns a map from query to reference features by comparing the two domains *given*
    the confounders, so that a difference in confounders (more patients in one domain) is not
    mistaken for a technical one. Applying the map needs the features only, no confounders.

    Features may have missing values (NaN, null). For diagonal maps, each feature is fitted on the
    rows where it has a value; matrices and divergences between samples use complete rows, with a
    warning. Missing values stay missing when they are mapped.

    Parameters
    ----------
    map : str or MapFamily, default="location-scale"
        The family of maps: "identity", "shift", "location-scale" (a scale and an offset for each
        feature; by "likelihood", features that are mostly zero are only multiplied), "monotone"
        (an increasing curve for each feature, which stays a line without evidence for a curve),
        "affine" (a full matrix), "orthogonal", "similarity", "low-rank".
        "auto" is "location-scale", but features for which a curve is more likely than a line get
        one (given confounders, up to 300 features). With 8 rows per feature or more it is also
        averaged with matrices, by how well each predicts held-out rows; see `report_`.
    divergence : str or Divergence, default="auto"
        What the map minimises: "reverse-kl", "forward-kl", "likelihood", "ot", "pc-match", or, a
        distance between samples, "mmd" or "energy". "auto" depends on the family and the
        confounders. With confounders it is "likelihood"; without, "ot" ("likelihood" for
        "monotone", "pc-match" for "orthogonal" and "similarity"). For "low-rank" it is
        "reverse-kl". Between different features it is a "regression" on stratum means (see
        `fit_pair`). For "affine" given confounders, with fewer than 8 rows per feature, it is an
        average of "ot", "pc-match" and the default lines, by how well each predicts held-out rows.
    prior : {"product", "paper", "overlap"} or Prior, default="product"
        The weight of each confounder value in the comparison, for divergences that use one. The
        likelihood uses every row and needs no prior: a named one is then an error.
    conditional : str or Conditional, default="auto"
        The estimator of features given confounders: "stratified" for categories; "kernel",
        "splines" or "chained" (needs LightGBM) for confounders of any kind. "auto" is
        "stratified", or "splines" if any confounder is continuous. Diagonal maps by "likelihood"
        need no conditional: a named one is then an error.
    reference : label or None, default=None
        The label of the domain to map to. Not needed if the labels are "query" and "reference";
        not used by `fit_pair`.
    categorical : list of names or positions, or None, default=None
        Numeric confounders whose numbers are codes of categories. Strings, booleans and categories
        are always categorical, and so is a numeric confounder with exactly two values.
    shrinkage : "auto", None or float in [0, 1], default="auto"
        "auto" is empirical Bayes: it learns from all strata and features how strongly to shrink
        scales to one and shifts to zero, less with more rows; for matrices it regularises the
        covariances of small strata. None is the plain estimator. A number s fixes the amount:
        0 is the plain estimator, 1 the identity.
    missing : {"raise", "drop", "impute"}, default="raise"
        What to do with rows whose confounders are missing: raise an error, drop the rows, or
        impute the median or the most frequent level of the row's domain. `report_` counts them.
    reliability : dict or None, default=None
        Continuous confounders that were measured with error. Give the share of their variance
        within domains that is true variance, ``{"score": 0.8}``, or columns that repeat the
        measurement, ``{"score": ["score_1", "score_2"]}``: their mean is then the confounder
        "score", and their differences show the error. By regression calibration, measured values
        are replaced in each domain by the expected true values given all confounders; the error is
        assumed to have the same variance in both domains. Standard errors take the share as known;
        `bootstrap` estimates it again from the columns.
    controls : list of str or int, or None, default=None
        Negative controls: features that nothing of interest moves, given by name, pattern
        (``"ERCC-*"``) or position. What they have in common within domains is taken for hidden
        technical causes. These are subtracted from all other features, relative to the controls'
        mean in the reference, before the map is fitted to what is left; without confounders
        nothing else is done. The map needs the controls as features, and shifts them to their mean
        in the reference. Standard errors come from `bootstrap`. Not for families with links.
    warn_overlap : float, default=0.4
        Warn if the overlap coefficient of the confounders is below this.
    min_overlap : float, default=0.05
        Raise an error if the overlap coefficient is below this; 0 never does.
    n_jobs : int or None, default=None
        Number of threads for linear algebra: None is 1, -1 is one per processor.
    verbose : bool, default=False
        Whether to show the progress of long searches on the error stream. In either case Ctrl-C
        ends a search with the best map so far, and a warning.
    random_state : int or None, default=None
        Seed of ingredients that are given by name and draw at random ("mmd" with many rows,
        "chained"). None is 0: results are the same every time.

    Attributes
    ----------
    map_ : AffineMap or MonotoneMap
        The map from query to reference features.
    support_ : Support
        The confounder values compared, with weights and counts, and those excluded.
    overlap_ : Overlap
        How far the confounders of the two domains overlap, together and one by one.
    divergence_, conditional_ : str or instance
        The divergence and the conditional that were used, also if the argument was "auto".
    map_se_ : dict of {"scale", "offset"} or {"values"} to ndarray, or None
        Standard errors of the map: sampling error, plus the bias by which shrinkage moved it; of
        curves, those of the "values" at knots. They come from a formula, or, for matrices (of low
        rank: all entries of A), divergences between samples and divergences of your own, from a
        bootstrap of moments and samples of strata. They do not contain that another solution may
        be as good, or that the sign of an axis may be wrong. None, until `bootstrap` is called, if
        resampling would take long or would mean little: given continuous confounders, except for
        diagonal maps by "likelihood" and matrices with "splines"; for matrices of more than 30
        features (100 in closed form; of rank 2, 66 or two million values); for domains with
        different features; if the rows do not determine the matrix; with missing values where
        there is no formula; for matrices and curves after `pairs`.
    errors_ : DiagonalErrors, CurveErrors, DrawnErrors or None
        The errors from which `transform` computes those of single values, as `map_.errors`: a
        covariance for lines or curves, bootstrap draws for matrices.
    report_ : FitReport
        Facts about the fit, as attributes or as items: rows compared, iterations, how much of the
        plain estimate shrinkage left, constant features, missing values; for matrices how the
        search went. If several kinds of maps were tried, "ladder" lists them with their scores
        and weights.
    n_features_in_ : int
        Number of features (of columns, for an array of which `features` are some).
    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features, if they have any.

    See Also
    --------
    AffineMap : The fitted map, which can be saved and used without the adapter.
    BatchAdapter : Maps of more than two batches.
    assess : Assess whether the domains can be compared, before fitting.
    evaluate : Judge whether the map makes data better, after fitting.

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

    map_: Any

    def __init__(
        self,
        map: checks.MapName | MapFamily = "location-scale",
        *,
        divergence: checks.DivergenceName | Divergence = "auto",
        prior: checks.PriorName | Prior = "product",
        conditional: checks.ConditionalName | Conditional = "auto",
        reference: Any = None,
        categorical: Any = None,
        shrinkage: checks.Shrinkage = "auto",
        missing: checks.Missing = "raise",
        reliability: Any = None,
        controls: Any = None,
        warn_overlap: float = 0.4,
        min_overlap: float = 0.05,
        n_jobs: int | None = None,
        verbose: bool = False,
        random_state: int | None = None,
    ) -> None:
        self.map, self.divergence, self.prior = map, divergence, prior
        self.conditional, self.reference, self.categorical = conditional, reference, categorical
        self.shrinkage, self.missing, self.reliability = shrinkage, missing, reliability
        self.controls, self.warn_overlap, self.min_overlap = controls, warn_overlap, min_overlap
        self.n_jobs, self.verbose, self.random_state = n_jobs, verbose, random_state

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
    ) -> "ConDoAdapter":
        """Learn the map from one table whose rows belong to two domains.

        Parameters
        ----------
        X : array, pandas or polars DataFrame, pyarrow Table or AnnData of shape (n_rows, n_columns)
            Rows of both domains. The variables of AnnData are features (`X`, read in blocks of
            rows), and columns of `obs` can be named for the other arguments. Lazy frames (polars,
            DuckDB, Dask and others), `dask.array`, `pyarrow.dataset` and readers of batches are not
            read into memory: the map is found from sums over all rows and a sample of them.
        y : ignored
            Exists for compatibility with scikit-learn.
        domain : array-like of shape (n_rows,) or str, default=None
            The domain of each row, or the name of the column of X that holds it: exactly two
            labels. Required, despite the default.
        confounders : array-like, data frame, dict, str or list of str, default=None
            What differs between the domains for reasons that are not technical: values, or the
            names of columns of X.
        features : str, or list of str or int, default=None
            Feature columns: names, patterns such as "eeg_*", or positions. By default all columns
            of an array; the variables of AnnData, except those that are zero in more than 80% of
            the rows of a domain; and the columns of numbers of a data frame, except those with
            another role and those that look like identifiers, dates, ages, codes or labels (a
            warning lists them).
        groups : array-like of shape (n_rows,) or str, default=None
            The subject of each row, in one domain or in both. Rows of one subject are correlated,
            so they count as less evidence than rows of different subjects. Subjects with rows in
            both domains show directly how the domains differ.
        sample_weight : array-like of shape (n_rows,) or str, default=None
            How many rows each row counts for: 2 stands for two equal rows.

        Returns
        -------
        ConDoAdapter
            The fitted adapter itself.

        Examples
        --------
        >>> from condokit import ConDoAdapter, datasets
        >>> df = datasets.make_eeg(random_state=0).to_frame()
        >>> adapter = ConDoAdapter(reference="v1")
        >>> adapter.fit(df, domain="device", confounders="seizure", features="eeg_*").support_
        seizure  weight  n_query  n_reference
          False   0.738      159          405
           True   0.262      241           95
        """
        roles = Roles(domain, confounders, features, groups, sample_weight, **how_read(self))
        self.fit_domains(read_two(X, roles, self.reference))
        self._domain = domain if isinstance(domain, str) else None
        own = {"features": features, "groups": groups, "sample_weight": sample_weight}
        self._roles: dict[str, Any] = remembered(domain=domain, confounders=confounders, **own)
        return self

    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        *,
        domain: Any = None,
        confounders: Any = None,
        features: Any = None,
        sample_weight: Any = None,
        ranges: Any = None,
    ) -> "ConDoAdapter":
        """Learn the map from these rows and those of earlier calls; only sums of rows are kept.

        Parameters
        ----------
        X : array or data frame of shape (n_rows, n_columns)
            More rows, with the same columns every time.
        y : ignored
            Exists for compatibility with scikit-learn.
        domain, confounders, features, sample_weight
            As in `fit`; `domain` may have one label only.
        ranges : dict of name to (low, high), default=None
            The smallest and largest possible value of each continuous confounder; see
            `Statistics.of`.

        Returns
        -------
        ConDoAdapter
            The adapter itself, which is fitted as soon as there are rows of both domains.

        Examples
        --------
        >>> from condokit import ConDoAdapter, datasets
        >>> df = datasets.make_eeg(90, 90, random_state=0).to_frame()
        >>> roles = {"domain": "device", "confounders": "seizure", "features": "*F3"}
        >>> adapter = ConDoAdapter(reference="v1").partial_fit(df[:100], **roles)
        >>> adapter.partial_fit(df[100:], **roles).report_.rows_reference
        90.0
        """
        known: Statistics | None = getattr(self, "statistics_", None)
        roles = {"domain": domain, "confounders": confounders, "sample_weight": sample_weight}
        if known is None:
            how = {"categorical": self.categorical, "missing": self.missing, "ranges": ranges}
            self.statistics_ = Statistics.of(X, features=features, **how, **roles)
        else:
            known.update(X, **roles)
        return self.fit_statistics(self.statistics_) if len(self.statistics_.labels) > 1 else self

    def fit_pair(
        self,
        X_query: Any,
        X_reference: Any,
        Z_query: Any = None,
        Z_reference: Any = None,
        *,
        confounders: Any = None,
        features: Any = None,
        pairs: Any = None,
        groups: Any = None,
        sample_weight: Any = None,
    ) -> "ConDoAdapter":
        """Learn the map from two tables, one for each domain.

        Parameters
        ----------
        X_query, X_reference : array or data frame of shape (n_rows, n_features)
            Features of each domain; columns are matched by name if they have names. With
            map="affine" the domains may have different features, if they share no name. The map is
            then, with divergence="auto", a regression of the reference's stratum means on query
            rows, with a ridge penalty that held-out rows choose; with one stratum, or with
            shrinkage=None, "auto" is "mmd". The divergences "mmd" and "energy" also match spreads,
            and such maps are farther from the truth.
        Z_query, Z_reference : array-like, data frame or dict, default=None
            Confounders of each domain.
        confounders : str, list of str, or pair of array-like, default=None
            In place of `Z_query` and `Z_reference`: names of columns of both tables, or a pair
            (query, reference).
        features : list of str or int, default=None
            As in `fit`, for both tables.
        pairs : pair of lists of int, default=None
            Subjects that were measured in both domains: their row numbers in X_query, and those in
            X_reference in the same order. The map is refined by regression on these pairs, as far
            as their evidence goes; with map="auto" also to a matrix, of low rank with many
            features. See `report_["pairs"]`. A row may be in several pairs, but every pair is
            listed once.
        groups, sample_weight : str or pair of array-like, default=None
            As in `fit`: the name of a column of both tables, or a pair (query, reference).

        Returns
        -------
        ConDoAdapter
            The fitted adapter itself.

        Examples
        --------
        Thirty samples that were measured by both devices:

        >>> import numpy as np
        >>> from condokit import ConDoAdapter
        >>> old = np.random.default_rng(0).normal(size=(30, 1))
        >>> adapter = ConDoAdapter().fit_pair((old - 1) / 2, old, pairs=(range(30), range(30)))
        >>> adapter.map_([[0.0], [1.0]]).round(3)
        array([[1.],
               [3.]])
        """
        if self.reference is not None:
            raise ValueError(
                f"'reference' is {self.reference!r}, but fit_pair takes the reference as its "
                "second table. Leave `reference` out, or use fit with one table."
            )
        Z, settings = (Z_query, Z_reference), {"features": features} | how_read(self)
        roles = Roles.of_pair(Z, confounders, groups, sample_weight, **settings)
        any_features = takes_any_features(self.map, self.divergence)
        domains = read_pair(X_query, X_reference, roles, any_features)
        self.fit_domains(domains, None if pairs is None else check_pairs(pairs, domains))
        own = {"features": features, "groups": groups, "sample_weight": sample_weight}
        given = confounders if Z_query is None else Z
        self._roles = remembered(domain=None, confounders=given, **own)
        return self

    @property
    def errors_(self) -> StandardErrors | None:
        """The errors of the map; those of matrices are computed when first asked for."""
        return self.map_.errors

    @errors_.setter
    def errors_(self, errors: StandardErrors | None) -> None:
        self.map_ = self.map_.with_errors(errors)

    @property
    def map_se_(self) -> dict[str, Array] | None:
        """Standard errors of the map's numbers, in arrays of the same shapes; None if unknown."""
        check_is_fitted(self)
        if self.errors_ is None:
            return None
        return self.errors_.tables()

    @overload
    def transform(self, X: T, *, domain: Any = None, return_std: Literal[False] = False) -> T: ...
    @overload
    def transform(self, X: T, *, domain: Any = None, return_std: Literal[True]) -> tuple[T, T]: ...
    @overload
    def transform(self, X: Any, *, domain: Any = None, return_std: bool = False) -> Any: ...
    def transform(
        self, X: Any, *, domain: Any = None, return_std: bool = False, **others: Any
    ) -> Any:
        """Map query rows to the reference; no confounders are needed.

        Parameters
        ----------
        X : array or data frame of shape (n_rows, n_columns)
            Rows to map. Features are found by name; other columns are ignored.
        domain : array-like of shape (n_rows,) or str, default=None
            The domain of each row; rows of the reference are then returned unchanged. If not
            given, all rows are taken as query rows.
        return_std : bool, default=False
            Whether to return also the standard error of every mapped value. It comes from the
            errors of the map only (the value itself is taken as exact), so it is zero for rows of
            the reference.
        **others
            Any other argument raises an error, which says that confounders are needed in `fit`
            only.

        Returns
        -------
        array or data frame of shape (n_rows, n_features)
            The mapped features, in the container of X. For AnnData, a copy in memory with a new
            `X`, in which all other variables are unchanged. With `return_std` a pair: values and
            standard errors. Lazy frames stay lazy, and keep all other columns.

        Examples
        --------
        >>> from condokit import ConDoAdapter, datasets
        >>> df = datasets.make_eeg(random_state=0).to_frame()
        >>> roles = {"domain": "device", "confounders": "seizure", "features": "eeg_*"}
        >>> adapter = ConDoAdapter(reference="v1").fit(df, **roles)
        >>> values, errors = adapter.transform(df, domain="device", return_std=True)
        >>> values.shape, float(errors[df["device"] == "v1"].max(axis=None))
        ((900, 16), 0.0)
        """
        check_is_fitted(self)
        if others:
            raise TypeError(
                f"transform() takes no {listing(others)}: it needs the features alone. Confounders "
                "are needed while fitting only."
            )
        if domain is None and is_routed(self, "transform", "domain"):
            text = "set_transform_request(domain=True) was asked for, but no 'domain' came: rows "
            text += "of the reference are mapped, too. Scorers of scikit-learn hand on what their "
            warn("no-domain", text + "set_score_request names.", UserWarning)
        return self._transform(X, domain, return_std)

    def inverse_transform(self, X: Any, *, domain: Any = None) -> Any:
        """Map rows from the reference's units back to the query's.

        Parameters
        ----------
        X, domain
            As in `transform`, with rows as it returns them.

        Returns
        -------
        array or data frame of shape (n_rows, n_features)
            The features as the query device would record them.
        """
        check_is_fitted(self)
        if self.map_.is_rectangular:
            if domain is not None:
                raise ValueError("'domain' cannot be used with a map between different features.")
            return self.map_.pseudo_inverse()(X)
        return self._apply(X, domain, {self._labels[0]: self.map_.inverse()})

    def fit_transform(self, X: Any, y: Any = None, *, domain: Any = None, **roles: Any) -> Any:
        """Fit, then map the query rows; reference rows are returned unchanged, in their order.

        Parameters
        ----------
        X, y, domain, **roles
            As in `fit`.

        Returns
        -------
        array or data frame of shape (n_rows, n_features)
            The features of all rows, as `transform` with `domain` returns them.
        """
        return self.fit(X, y, domain=domain, **roles).transform(X, domain=domain)

    def get_feature_names_out(self, input_features: Any = None) -> Array:  # noqa: D102
        check_is_fitted(self)
        if self.map_.is_rectangular:
            return self.map_.get_feature_names_out()
        return super().get_feature_names_out(input_features)

    def fit_domains(
        self,
        domains: Study,
        pairs: tuple[Array, Array] | None = None,
        notes: list[Note] | None = None,
    ) -> "ConDoAdapter":
        """Learn the map from a `Study` of two domains, as `fit` and `fit_pair` do after reading."""
        if self.n_jobs is not None and self.n_jobs != -1:
            check_integer("n_jobs", self.n_jobs, 1)
        settings = self.get_params(deep=False)
        with noting(notes) as notes, computing("map"):
            warn_of_columns(domains, getattr(self.map, "links", None) is not None)
            with watched(bool(self.verbose), self.n_jobs) as watch:
                if self.controls is not None and not domains.is_whole:
                    domains = from_sample(domains)
                fit, chosen = find(settings | self._ingredients(domains), domains, pairs)
            if watch.stopped:
                text = "Interrupted: the map is the best that was found so far."
                warn("interrupted", text, UserWarning)
                fit = replace(fit, report=replace(fit.report, interrupted=True))
        how = account_of_map(self.described(), domains, fit, chosen, notes)
        errors = partial(_found, fit.errors, self.n_jobs) if callable(fit.errors) else fit.errors
        self.map_ = fit.map.with_origin(profile(domains, hidden=True), how).with_errors(errors)
        self.support_, self.overlap_ = fit.support, fit.overlap
        self.report_: FitReport = fit.report
        self.chosen_ = chosen
        self.divergence_, self.conditional_ = chosen.divergence, chosen.conditional
        self._labels = domains.labels
        self._domain = None  # the name of the column of X, if `domain` was one
        self._roles = {}  # arguments of `fit` that were names of columns
        self._keep_features(domains.tables[0])
        return self

    def described(self) -> dict[str, Any]:
        """Return the settings by which a file knows how its map was made.

        Returns
        -------
        dict
            The parameters, and the "method" of `condokit.paper` if it is one of these.
        """
        return self.get_params(deep=False)

    def _ingredients(self, domains: Study) -> dict[str, Any]:
        """Return settings that depend on the data, or that a subclass has by other names."""
        return {}

    def _fit_statistics(self, statistics: Statistics, notes: list[Note]) -> "ConDoAdapter":
        return self.fit_domains(as_domains(statistics, self.reference), notes=notes)

    def _fitted(self) -> Mapping[Any, Map]:
        return {self._labels[0]: self.map_}

    def _place(self, domain: Any, table: Table) -> tuple[Array, Array | None]:
        code = np.zeros(table.n_rows, dtype=np.intp)
        if domain is not None:
            if self.map_.is_rectangular:
                raise ValueError(
                    "'domain' cannot be used with a map between different features: rows of the "
                    "reference have other columns. Transform the query rows alone."
                )
            return code, is_reference_row(domain, table, self._labels)
        if self._domain in table.described:
            labels = column_values(table, "domain", self._domain)
            if (labels == self._labels[1]).any():
                text = "Rows of the reference are mapped, too; they stay as they are with {how}."
                warn("reference-rows", text, UserWarning, how=f"domain={self._domain!r}")
        return code, None

    def _map_lazily(self, maps: Mapping[Any, Map], blocks: Blocks, domain: Any) -> Any:
        return map_lazily_but(maps[self._labels[0]], blocks, domain, self._labels)


def _found(later: Callable[[], StandardErrors | None], n_jobs: int | None) -> StandardErrors | None:
    """Compute errors that were put off until they are asked for."""
    with computing("standard error"), threads(n_jobs):
        return later()
