"""Which confounder values are compared, and with what weight: the support and the prior."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from sklearn.base import BaseEstimator

from condokit.checks import Array, NoOverlapError, check_word, listing
from condokit.compare.overlap import calibrated, propensity
from condokit.data import kernels
from condokit.data.arrays import ones_for_zeros
from condokit.data.covariates import Covariates
from condokit.data.disclosure import MIN_CELL, hidden_counts, shown_names, small_cells
from condokit.data.records import Sheet
from condokit.data.study import Strata, Study
from condokit.data.subsets import subsample_sides

_MOST_POINTS = 1000  # support points of continuous confounders


@dataclass(frozen=True)
class Support:
    """The confounder values that are compared, with their weights and the rows behind them."""

    names: list[str]  #: The confounders.
    levels: list[tuple[Any, ...]]  #: Combinations of confounder values, one for each entry below.
    weights: Array  #: Prior weights; they sum to one.
    count_query: Array  #: Query rows (sums of `sample_weight` if given).
    count_reference: Array  #: Reference rows.
    #: Confounder values seen in one domain only, with their counts: not compared.
    dropped: list[dict[str, Any]] = field(default_factory=list)
    # place of each value among all strata
    index: Array = field(default_factory=lambda: np.empty(0, dtype=np.intp), repr=False)

    @property
    def n_rows(self) -> Array:
        """Rows of both domains."""
        return self.count_query + self.count_reference

    def place(self, strata: Strata) -> Array:
        """Return the number of every row's value among those compared, -1 for none."""
        place = np.full(len(strata.levels) + 1, -1, dtype=np.int32)  # the last is that of code -1
        place[self.index] = np.arange(len(self.index), dtype=np.int32)
        return place[strata.codes]

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the table as columns, ready for a data frame.

        Returns
        -------
        dict of str to list
            Confounders, "weight", "n_query" and "n_reference".
        """
        query, reference = self.count_query.tolist(), self.count_reference.tolist()
        counts = {"weight": self.weights.tolist(), "n_query": query, "n_reference": reference}
        return _columns(self.names, self.levels, counts)

    def left_out(self) -> list[Any]:
        """Return the values seen in one domain only, those of few rows without their names."""
        values = [tuple(row[name] for name in self.names) for row in self.dropped]
        return shown_names(
            values, np.array([r["n_query"] + r["n_reference"] for r in self.dropped])
        )

    def __repr__(self) -> str:
        columns, total = self.to_dict(), self.n_rows
        for column in list(columns)[: len(self.names)]:
            columns[column] = shown_names(columns[column], total)
        for name, counts in (("n_query", self.count_query), ("n_reference", self.count_reference)):
            columns[name] = hidden_counts(counts)
            if small_cells(counts).any():
                columns.pop("weight", None)  # hidden counts could be computed from it
        text = repr(Sheet(columns))
        if self.dropped:
            text += f"\nnot compared (one domain only): {listing(self.left_out())}"
        return text


class Prior(BaseEstimator, ABC):
    """Where and how strongly the two domains are compared.

    One of your own has `weigh`, for categories, and `points`, for continuous confounders; derive
    it from one that has the other already. With `sees_objects` it is told the confounders as they
    were given, too.

    Examples
    --------
    >>> from condokit import ConDoAdapter, OverlapPrior, datasets
    >>> class AsInTheReference(OverlapPrior):
    ...     def weigh(self, share_query, share_reference, share_pooled):
    ...         return share_reference
    >>> eeg = datasets.make_eeg(100, 100, random_state=0)
    >>> data = eeg.X_query, eeg.X_reference, eeg.seizure_query, eeg.seizure_reference
    >>> adapter = ConDoAdapter(divergence="ot", prior=AsInTheReference()).fit_pair(*data)
    >>> adapter.support_.weights.round(2)
    array([0.82, 0.18])
    """

    sees_objects: ClassVar[bool] = False

    @abstractmethod
    def weigh(self, share_query: Array, share_reference: Array, share_pooled: Array) -> Array:
        """Return weights of strata, which need not sum to one.

        Parameters
        ----------
        share_query, share_reference, share_pooled : ndarray of shape (n_strata,)
            Shares of the strata in each domain, and in all rows.

        Returns
        -------
        ndarray of shape (n_strata,)
            Weights, none of them negative.
        """

    @abstractmethod
    def points(self, covariates: Covariates, is_query: Array) -> tuple[Array, Array]:
        """Return the rows whose continuous confounders are compared, and their weights.

        Parameters
        ----------
        covariates : Covariates
            The confounders of the rows of both domains.
        is_query : ndarray of bool of shape (n_rows,)
            Which of them are query rows.

        Returns
        -------
        tuple of ndarray
            Row numbers, and their weights, which sum to one.
        """

    def support(self, domains: Study, strata: Strata) -> Support:
        """Return the strata seen in both domains with weights that sum to one."""
        n_query, n_reference = strata.count_query, strata.count_reference
        n_rows = n_query + n_reference
        in_both = (n_query > 0) & (n_reference > 0)
        common = np.flatnonzero(in_both)
        if len(common) == 0:
            raise _no_overlap(strata)
        shares = (counts / counts.sum() for counts in (n_query, n_reference, n_rows))
        weights = self.weigh(*shares)[common]
        columns = [*strata.names, "n_query", "n_reference"]
        cells = list(zip(strata.levels, n_query.tolist(), n_reference.tolist()))
        alone = [cells[k] for k in np.flatnonzero(~in_both & (n_rows > 0))]
        return Support(
            strata.names,
            [strata.levels[k] for k in common],
            weights / weights.sum(),
            n_query[common],
            n_reference[common],
            dropped=[dict(zip(columns, (*level, q, r))) for level, q, r in alone],
            index=common,
        )


class ProductPrior(Prior):
    r"""Weight confounder values by the product of their densities in the two domains.

    For strata with shares :math:`p_q` and :math:`p_r`, the true product is
    :math:`w \propto p_q p_r`; the equation of the paper weights every pooled row by
    :math:`p_q p_r`, so that a stratum gets :math:`w \propto p_q p_r (N_q p_q + N_r p_r)`. Either
    is zero where one domain has no rows.

    Parameters
    ----------
    variant : {"product", "paper"}, default="product"
        The true product, or the equation of the paper.
    kernel : callable or None, default=None
        k(Z1, Z2) -> matrix on the confounders as they are given, whatever they are. None is RBF
        for continuous columns times equality of categories.
    bandwidth : float or None, default=None
        Factor of Silverman's bandwidth; None is 1.

    Examples
    --------
    >>> from condokit import ConDoAdapter, ProductPrior, datasets
    >>> eeg = datasets.make_eeg(100, 100, random_state=0)
    >>> data = eeg.X_query, eeg.X_reference, eeg.seizure_query, eeg.seizure_reference
    >>> adapter = ConDoAdapter(divergence="ot", prior=ProductPrior()).fit_pair(*data)
    >>> adapter.support_.weights.round(3)
    array([0.672, 0.328])
    """

    most_points: ClassVar[int] = _MOST_POINTS

    def __init__(
        self,
        variant: Literal["product", "paper"] = "product",
        kernel: kernels.Kernel | None = None,
        bandwidth: float | None = None,
    ) -> None:
        self.variant = variant
        self.kernel = kernel
        self.bandwidth = bandwidth

    def points(self, covariates: Covariates, is_query: Array) -> tuple[Array, Array]:  # noqa: D102
        # true product: half the mass on query rows weighted by the reference's density, half the
        # other way round; paper: all rows weighted by both densities
        rows = subsample_sides(is_query, self.most_points // 2, order=covariates.order)
        at = covariates.take(rows)
        domains = covariates.take(is_query), covariates.take(~is_query)
        f_query, f_reference = (self.density(at, data) for data in domains)
        here, paper = is_query[rows], self._is_paper()
        weights = f_query * f_reference if paper else np.where(here, f_reference, f_query)
        weights = weights * at.counts
        if not weights.max() > kernels.NOTHING:
            raise NoOverlapError(
                "The confounders of the two domains do not overlap at all: add samples of one "
                "domain with values that the other has."
            )
        if not paper:
            for side in (here, ~here):
                weights[side] /= max(weights[side].sum(), kernels.NOTHING)
        return rows, weights / weights.sum()

    def weigh(self, share_query: Array, share_reference: Array, share_pooled: Array) -> Array:  # noqa: D102
        product = share_query * share_reference
        return product * share_pooled if self._is_paper() else product

    def density(self, at: Covariates, data: Covariates) -> Array:
        """Return the density of one domain at some points, up to a constant factor."""
        kernels.check_kernel(self.kernel, self.bandwidth)
        widths = (self.bandwidth or 1.0) * kernels.column_widths(data)
        return kernels.density(at, data, widths, self.kernel)

    def _is_paper(self) -> bool:
        """Return whether the paper's equation is used; refuse unknown variants."""
        check_word("'variant' of ProductPrior", self.variant, ("product", "paper"))
        return self.variant == "paper"


class OverlapPrior(Prior):
    r"""Weight confounder values by what a comparison there can tell.

    The variance of a difference of two means is :math:`1 / n_q + 1 / n_r`, so a stratum gets
    :math:`w \propto n_q n_r / (n_q + n_r)`. Of continuous confounders, all rows are compared with
    weights :math:`\pi (1 - \pi)`, where :math:`\pi(z)` is the cross-fitted probability of a query
    row: the overlap weights of Li, Morgan and Zaslavsky (2018).

    Examples
    --------
    >>> from condokit import ConDoAdapter, OverlapPrior, datasets
    >>> eeg = datasets.make_eeg(100, 100, random_state=0)
    >>> data = eeg.X_query, eeg.X_reference, eeg.seizure_query, eeg.seizure_reference
    >>> adapter = ConDoAdapter(divergence="ot", prior=OverlapPrior()).fit_pair(*data)
    >>> adapter.support_.weights.round(3)
    array([0.612, 0.388])
    """

    def weigh(self, share_query: Array, share_reference: Array, share_pooled: Array) -> Array:  # noqa: D102
        return share_query * share_reference / ones_for_zeros(share_pooled)

    def points(self, covariates: Covariates, is_query: Array) -> tuple[Array, Array]:  # noqa: D102
        rows = subsample_sides(is_query, _MOST_POINTS // 2)
        at, here = covariates.take(rows), is_query[rows]
        e = calibrated(propensity(at, here), at, here)
        weights, totals = at.counts.copy(), []
        for side, mine in ((is_query, here), (~is_query, ~here)):
            totals.append(covariates.counts[side].sum())
            weights[mine] *= totals[-1] / weights[mine].sum()  # as many as there are
        pi = totals[0] * e / (totals[0] * e + totals[1] * (1 - e))
        weights = weights * pi * (1 - pi)
        return rows, weights / weights.sum()


PRIORS: dict[str, Any] = {
    "product": ProductPrior,
    "paper": partial(ProductPrior, "paper"),
    "overlap": OverlapPrior,
}


def _no_overlap(strata: Strata) -> NoOverlapError:
    """Word the error for domains that share no stratum, with the table of counts."""
    sides = (strata.count_query, strata.count_reference)
    rare = small_cells(sides[0] + sides[1])
    shown = np.flatnonzero(~rare)
    counts = {n: hidden_counts(c[shown]) for n, c in zip(("n_query", "n_reference"), sides)}
    columns = _columns(strata.names, [strata.levels[k] for k in shown], counts)
    more = f"{rare.sum()} with fewer than {MIN_CELL} rows\n" if rare.any() else ""
    if len(strata.names) == 1:
        what = f"confounder {strata.names[0]!r} has no level in both domains"
    else:
        what = f"no combination of the confounders {listing(strata.names)} occurs in both domains"
    return NoOverlapError(
        f"{what}.\n{Sheet(columns)!r}\n{more}Adaptation compares like with like: add samples of "
        "one domain with values that the other has, or merge levels that are alike. Without the "
        "confounder, its difference would be removed as if it were technical."
    )


def _columns(
    names: list[str], levels: list[tuple[Any, ...]], counts: dict[str, list[Any]]
) -> dict[str, list[Any]]:
    """Return one column per confounder, renamed if another column has its name, and counts."""
    columns = {}
    for j, name in enumerate(names):
        values = [level[j] for level in levels]
        if len(set(map(str, values))) < len(set(values)):  # 1 and "1" are two levels
            values = [repr(value) for value in values]
        columns[f"{name} (confounder)" if name in counts else name] = values
    return {**columns, **counts}
