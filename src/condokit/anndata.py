"""Maps the batches of an AnnData to one of them, in the conventions of scanpy."""

import io
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from condokit.adapter import ConDoAdapter
from condokit.batches.adapter import BatchAdapter
from condokit.batches.record import ERRORS
from condokit.checks import Missing, Note, listing, noting, unknown_columns
from condokit.io.formats import need
from condokit.trust.evaluate import evaluate as evaluate_maps

__all__ = ["adapt", "apply"]
_ENDS = ("before_low", "before_high", "after_low", "after_high")
_EVALUATED = 20_000_000  # largest number of values for which maps are evaluated by default


def adapt(
    adata: Any,
    *,
    batch_key: str,
    reference: Any,
    confounder_keys: str | Sequence[str] | None = None,
    layer: str | None = None,
    use_rep: str | None = None,
    features: Any = None,
    bridge: str | None = None,
    groups: str | None = None,
    map: Any = "location-scale",
    missing: Missing = "raise",
    unreachable: str = "raise",
    evaluate: bool | None = None,
    key_added: str = "condokit",
    inplace: bool = True,
) -> Any:
    """Map the cells of all batches to one batch, given confounders; `X` itself is not changed.

    Variables that are mostly zero are only multiplied, so that their zeros stay zero.

    Parameters
    ----------
    adata : AnnData
        Cells of all batches; sparse, backed and lazy data are read in blocks.
    batch_key : str
        The column of `obs` with the batch of each cell.
    reference : label, "auto" or "consensus"
        The batch to map to; see `BatchAdapter`.
    confounder_keys : str or list of str, default=None
        Columns of `obs` that differ between batches for reasons that are not technical, such as
        cell types.
    layer, use_rep : str, default=None
        A key of `layers` or of `obsm`, whose values are mapped instead of `X`.
    features : str or list of str, default=None
        Names or patterns of the variables to map; others stay unchanged.
    bridge, groups : str, default=None
        Columns of `obs`: cells with the same value of `bridge` are one sample measured in several
        batches; `groups` is the subject of each cell; see `BatchAdapter.fit`.
    map : str or MapFamily, default="location-scale"
        The family of maps, as in `ConDoAdapter`.
    missing : {"raise", "drop", "impute"}, default="raise"
        What to do with cells whose confounders are missing, as in `ConDoAdapter`.
    unreachable : {"raise", "keep"}, default="raise"
        What to do with batches that cannot be compared, as in `BatchAdapter`.
    evaluate : bool or None, default=None
        Whether to judge the maps by `condokit.evaluate`; None does so up to 20 million values.
    key_added : str, default="condokit"
        The mapped values are written to `layers[key_added]`, or to
        ``obsm[f"{use_rep}_{key_added}"]``. `uns` gets, under the same key, the parameters, a table
        of batches with their expected errors in sd of the reference, the number of variables that
        were not mapped, the shares of mapped values that became negative, warnings, the verdict in
        a sentence, verdicts of batches with 95% intervals of errors and reasons for doubt, and
        "maps", the map file as text, which `apply` reads. If `uns` has
        something else under this key, an error is raised. ``var[f"{key_added}_mapped"]`` marks the
        variables that were mapped.
    inplace : bool, default=True
        Whether to write into `adata`. If not, a copy in memory is returned.

    Returns
    -------
    AnnData or None
        The copy; None if `inplace`.

    See Also
    --------
    anndata.apply : Map other cells of the same batches.

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
    keys = [confounder_keys] if isinstance(confounder_keys, str) else list(confounder_keys or ())
    said = {"batch_key": batch_key, "bridge": bridge, "groups": groups}
    _check_keys(adata, {**said, "confounder_keys": keys})
    result = _result(adata, use_rep, key_added)
    part = _part(adata, layer, use_rep)
    roles: dict[str, Any] = {"batch": batch_key, "confounders": keys or None}
    roles |= {"groups": groups, "bridge": bridge}
    one = ConDoAdapter(map, missing=missing)
    adapter = BatchAdapter(one, reference=reference, unreachable=unreachable)
    adapter.fit(part, features=features, **roles)
    adata = _own(adata, inplace)
    notes = _write(adata, adapter, part, batch_key, use_rep, result)
    given = said | {"layer": layer, "use_rep": use_rep}
    params: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    params["confounder_keys"] = _texts(keys)
    facts = {"params": params, **_facts(adapter, part.n_vars, notes)}
    if evaluate or (evaluate is None and part.n_obs * part.n_vars <= _EVALUATED):
        found = evaluate_maps(adapter, part, **roles)
        facts |= {"verdict": found.verdict, "sentence": found.parts()[0][1]}
        # columns, since labels may have slashes, which keys of files may not
        for name in ("verdict", "doubts", *_ENDS, "better_features"):
            by_label = dict(zip(found.batches["batch"], found.batches[name]))
            values = [by_label.get(label) for label in adapter.report_.batches]
            is_text = name in ("verdict", "doubts")
            facts["batches"][name] = (
                _texts(value or "" for value in values) if is_text else np.array(values, float)
            )
    content = io.BytesIO()
    adapter.save(content)
    adata.uns[result] = facts | {"maps": content.getvalue().decode()}
    return None if inplace else adata


def apply(
    adata: Any,
    *,
    from_uns_of: Any,
    batch_key: str | None = None,
    layer: str | None = None,
    use_rep: str | None = None,
    key_added: str = "condokit",
    inplace: bool = True,
) -> Any:
    """Map new cells of known batches by the maps that `adapt` has stored in another AnnData.

    Parameters
    ----------
    adata : AnnData
        Cells of batches that have a map; no confounders are needed.
    from_uns_of : AnnData
        The AnnData with the result of `adapt`, also if it was saved and read again.
    batch_key : str or None, default=None
        The column of `obs` with the batch of each cell; None is the name that `adapt` was given.
    layer, use_rep : str, default=None
        As in `adapt`; they must name the same kind of values.
    key_added : str, default="condokit"
        As in `adapt`: the key under which the maps are stored, and that of the result.
    inplace : bool, default=True
        Whether to write into `adata`. If not, a copy in memory is returned.

    Returns
    -------
    AnnData or None
        The copy; None if `inplace`.

    Examples
    --------
    >>> import anndata, numpy as np
    >>> import condokit
    >>> rng = np.random.default_rng(0)
    >>> cells = anndata.AnnData(rng.normal(5, 1, size=(200, 3)))
    >>> cells.obs["batch"] = np.repeat(["old", "new"], 100)
    >>> cells.X[100:] += 2
    >>> condokit.anndata.adapt(cells, batch_key="batch", reference="old")
    >>> month = cells[150:].copy()
    >>> condokit.anndata.apply(month, from_uns_of=cells)
    >>> bool((month.layers["condokit"] == cells.layers["condokit"][150:]).all())
    True
    """
    _check_keys(from_uns_of, {}, "from_uns_of")
    known = [k for k, v in from_uns_of.uns.items() if isinstance(v, dict) and "maps" in v]
    place = key_added if use_rep is None else f"{use_rep}_{key_added}"
    if place not in known:
        there = f"there are maps under {listing(known)}" if known else "there are none: call adapt"
        raise ValueError(f"'from_uns_of' has no maps under uns[{place!r}]; {there}.")
    facts = from_uns_of.uns[place]
    batch_key = str(facts["params"]["batch_key"]) if batch_key is None else batch_key
    _check_keys(adata, {"batch_key": batch_key})
    result = _result(adata, use_rep, key_added)
    adapter = BatchAdapter.load(io.BytesIO(str(facts["maps"]).encode()))
    part = _part(adata, layer, use_rep)
    adata = _own(adata, inplace)
    _write(adata, adapter, part, batch_key, use_rep, result)
    adata.uns[result] = {name: facts[name] for name in ("params", "reference", "maps")}
    return None if inplace else adata


def _check_keys(adata: Any, keys: dict[str, Any], name: str = "adata") -> None:
    """Raise an error if `adata` is no AnnData, or if `obs` lacks one of the columns."""
    kind = need("anndata", "adapt needs anndata", "anndata").AnnData
    if not isinstance(adata, kind):
        raise TypeError(f"{name!r} must be an AnnData. Got {type(adata).__name__}.")
    for argument, given in keys.items():
        names = given if isinstance(given, list) else [given]
        if unknown := [name for name in names if name is not None and name not in adata.obs]:
            raise unknown_columns(argument, unknown, list(adata.obs.columns), "obs")


def _result(adata: Any, use_rep: str | None, key_added: str) -> str:
    """Return the key of the result; raise an error if `uns` has something else under it."""
    name = key_added if use_rep is None else f"{use_rep}_{key_added}"
    held = adata.uns.get(name)
    if held is not None and not (isinstance(held, dict) and "params" in held):
        text = f"uns[{name!r}] holds something else, which would be lost"
        raise ValueError(f"{text}: choose another 'key_added'.")
    return name


def _own(adata: Any, inplace: bool) -> Any:
    """Return the AnnData into which results are written: itself, or a copy in memory."""
    if inplace:
        return adata
    return adata.to_memory() if adata.isbacked else adata.copy()


def _write(
    adata: Any, adapter: BatchAdapter, part: Any, batch_key: str, use_rep: str | None, result: str
) -> list[Note]:
    """Write the mapped values and the mark of mapped variables; return the warnings."""
    labels = part.obs[batch_key]
    known = {str(label): label for label in adapter.maps_}  # labels from a file may be text
    with noting() as notes:
        values = adapter.transform(part, batch=[known.get(str(x), x) for x in labels]).X
    if use_rep is not None:
        adata.obsm[result] = values
        return notes
    adata.layers[result] = values
    mapped = set(adapter.feature_names_in_)
    adata.var[f"{result}_mapped"] = [name in mapped for name in adata.var_names]
    return notes


def _part(adata: Any, layer: str | None, use_rep: str | None) -> Any:
    """Return an AnnData whose X has the values that are to be mapped."""
    kind = type(adata)
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
    """Return facts about the maps in types that an .h5ad file can hold."""
    said = {note.sentence.code: note.sentence.fields for note in notes}
    report, negative = adapter.report_, said.get("negative-values", {})
    facts, n_alone = list(report.batches.values()), n_variables - len(adapter.feature_names_in_)
    # weights of the mean error: rows of batches that are mapped
    is_mapped = [len(one.path) > 1 and not isinstance(one.rows, str) for one in facts]
    rows = np.array([one.rows if mapped else 0.0 for one, mapped in zip(facts, is_mapped)])
    errors = {name: np.array([getattr(one, name) for one in facts]) for name in ERRORS}
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
    """Return values as an array of text."""
    return np.array([str(value) for value in values], dtype=object)
