"""Batches of an AnnData made comparable, in the conventions of scanpy."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from condokit.batches.adapter import BatchAdapter
from condokit.checks import Note, noting, unknown_columns
from condokit.io.formats import need
from condokit.trust.evaluate import evaluate

__all__ = ["adapt"]
_ERRORS = ("error_before", "error_after")
_EVALUATED = 20_000_000  # values up to which the maps are evaluated


def adapt(
    adata: Any,
    *,
    batch_key: str,
    reference: Any,
    confounder_keys: str | Sequence[str] | None = None,
    layer: str | None = None,
    use_rep: str | None = None,
    key_added: str = "condokit",
    inplace: bool = True,
) -> Any:
    """Map the cells of all batches to one of them, given what confounds them; `X` stays.

    Variables that are zero in more than 80% of the cells of a batch are left as they are.

    Parameters
    ----------
    adata : AnnData
        Cells of all batches; sparse, backed and lazy ones are read in blocks.
    batch_key : str
        The column of `obs` with the batch of each cell.
    reference : label, "auto" or "consensus"
        The batch to map to; see `BatchAdapter`.
    confounder_keys : str or list of str, default=None
        Columns of `obs` with what differs between batches for other reasons, such as cell types.
    layer, use_rep : str, default=None
        A key of `layers` or of `obsm` whose values are mapped in place of `X`.
    key_added : str, default="condokit"
        The result is `layers[key_added]`, or ``obsm[f"{use_rep}_{key_added}"]``; `uns[key_added]`
        has parameters, batches with their expected errors in sd of the reference, the number of
        variables left alone, shares of mapped values that became negative, warnings, and, of up to
        20 million values, the verdicts of `condokit.evaluate`.
    inplace : bool, default=True
        Whether to write into `adata`, or into a copy in memory, which is returned.

    Returns
    -------
    AnnData or None
        The copy, or nothing if `inplace`.

    Examples
    --------
    >>> import anndata, numpy as np
    >>> import condokit
    >>> rng = np.random.default_rng(0)
    >>> cells = anndata.AnnData(rng.normal(5, 1, size=(200, 3)))
    >>> cells.obs["batch"] = np.repeat(["old", "new"], 100)
    >>> cells.obs["cell_type"] = np.tile(["T", "B"], 100)
    >>> cells.X[100:] += 2
    >>> condokit.anndata.adapt(
    ...     cells, batch_key="batch", reference="old", confounder_keys="cell_type"
    ... )
    >>> (cells.layers["condokit"][100:].mean() - cells.X[:100].mean()).round(1) + 0.0
    np.float64(0.0)
    """
    kind = need("anndata", "adapt needs anndata", "anndata").AnnData
    if not isinstance(adata, kind):
        raise TypeError(f"'adata' must be an AnnData. Got {type(adata).__name__}.")
    keys = [confounder_keys] if isinstance(confounder_keys, str) else list(confounder_keys or ())
    for argument, names in (("batch_key", [batch_key]), ("confounder_keys", keys)):
        if unknown := [name for name in names if name not in adata.obs]:
            raise unknown_columns(argument, unknown, list(adata.obs.columns), "obs")
    part = _part(kind, adata, layer, use_rep)
    adapter = BatchAdapter(reference=reference)
    adapter.fit(part, batch=batch_key, confounders=keys or None)
    with noting() as notes:
        values = adapter.transform(part, batch=batch_key).X
    if not inplace:
        adata = adata.to_memory() if adata.isbacked else adata.copy()
    if use_rep is None:
        adata.layers[key_added] = values
    else:
        adata.obsm[f"{use_rep}_{key_added}"] = values
    given = {"batch_key": batch_key, "layer": layer, "use_rep": use_rep}
    params: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    params["confounder_keys"] = _texts(keys)
    facts = {"params": params, **_facts(adapter, part.n_vars, notes)}
    if part.n_obs * part.n_vars <= _EVALUATED:
        found = evaluate(adapter, part, batch=batch_key, confounders=keys or None)
        verdicts = dict(zip(found.batches["batch"], found.batches["verdict"]))
        facts["verdict"] = found.verdict  # labels may have slashes, which keys of files may not
        facts["batches"]["verdict"] = _texts(verdicts.get(k, "") for k in adapter.report_.batches)
    adata.uns[key_added] = facts
    return None if inplace else adata


def _part(kind: Any, adata: Any, layer: str | None, use_rep: str | None) -> Any:
    """Return AnnData with the values that are mapped as X."""
    if layer is not None and use_rep is not None:
        raise ValueError("Give 'layer' or 'use_rep', not both.")
    for argument, key, place in (("layer", layer, "layers"), ("use_rep", use_rep, "obsm")):
        held = [name for name in getattr(adata, place) if name is not None]  # None is X
        if key is not None and key not in held:
            raise unknown_columns(argument, [key], held, place)
    if layer is not None:
        return kind(adata.layers[layer], obs=adata.obs, var=adata.var[[]])
    if use_rep is None:
        return adata
    values = adata.obsm[use_rep]
    return kind(values if hasattr(values, "tocsr") else np.asarray(values), obs=adata.obs)


def _facts(adapter: BatchAdapter, n_variables: int, notes: list[Note]) -> dict[str, Any]:
    """Return what is known of the maps, as an .h5ad file can hold it."""
    said = {note.sentence.code: note.sentence.fields for note in notes}
    report, negative = adapter.report_, said.get("negative-values", {})
    facts, n_alone = list(report.batches.values()), int(report.facts["left_alone"])
    rows = np.array([0.0 if isinstance(one.rows, str) else one.rows for one in facts])
    errors = {name: np.array([getattr(one, name) for one in facts]) for name in _ERRORS}
    texts = [f"{note.category}: {note.sentence}" for note in notes]
    return {
        "reference": str(report.reference),
        "batches": {
            "batch": _texts(report.batches),
            "rows": _texts(one.rows for one in facts),
            **errors,
            "path": _texts(" > ".join(map(str, one.path)) for one in facts),
        },
        **{name: float(np.sqrt(rows @ e**2 / max(rows.sum(), 1.0))) for name, e in errors.items()},
        "n_mapped": n_variables - n_alone,
        "n_left_alone": n_alone,
        "negative_from_positive": float(negative.get("positive", 0.0)),
        "negative_from_zero": float(negative.get("zero", 0.0)),
        "warnings": _texts([*adapter.provenance_["warnings"], *texts]),
    }


def _texts(values: Iterable[Any]) -> Any:
    return np.array([str(value) for value in values], dtype=object)
