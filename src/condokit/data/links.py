"""Links: features are mapped on another scale, so that positive and bounded ones stay so."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import expit, logit

from condokit.checks import Array, did_you_mean, is_number, listing

Link = str | float | None
NAMES = ("log", "logit")
LEAST_SHARE, MOST_SHARE = 1e-37, 1 - 6e-8  # not quite 0 and 1, in single precision as well


def check_links(links: Any, labels: Sequence[str]) -> tuple[Link, ...] | None:
    """Return one link per feature, or None, given one for all, a sequence or a dictionary."""
    if links is None:
        return None
    if isinstance(links, Mapping):
        places = dict(enumerate(labels))
        links = {places.get(name, name): link for name, link in links.items()}
        unknown = [name for name in links if name not in labels]
        if unknown:
            raise ValueError(
                f"'links' names {listing(unknown)}, which is no feature."
                f"{did_you_mean(unknown[0], labels)}"
            )
        each = [links.get(label) for label in labels]
    elif np.isscalar(links):
        each = [links] * len(labels)
    else:
        each = list(links)
        if len(each) != len(labels):
            raise ValueError(
                f"'links' must have one entry per feature: {len(labels)}. Got {len(each)}."
            )
    checked = tuple(_check(link) for link in each)
    return checked if any(link is not None for link in checked) else None


def _check(link: Any) -> Link:
    """Return a valid link; refuse others."""
    if link is None or (isinstance(link, str) and link in NAMES):
        return link
    if is_number(link) and np.finfo(float).tiny <= link <= np.finfo(float).max:  # 1 / link as well
        return float(link)
    raise ValueError(f"A link must be 'log', 'logit', a power above 0 or None. Got {link!r}.")


def apply(links: tuple[Link, ...] | None, X: Array, labels: Sequence[str], table: str) -> Array:
    """Return the features on the scale of their links; refuse values a link does not admit."""
    if links is None:
        return X
    out = np.array(X, dtype=np.float64)
    for j, link in enumerate(links):
        if link is None:
            continue
        x = X[:, j]
        bad = (x <= 0) if link == "log" else (x <= 0) | (x >= 1) if link == "logit" else x < 0
        if bad.any():
            asks = {"log": "above 0", "logit": "between 0 and 1"}.get(str(link), "of at least 0")
            raise ValueError(
                f"{table} has values that the link {link!r} of {labels[j]!r} does not admit. "
                f"It needs values {asks}; choose another link for this feature."
            )
        out[:, j] = np.log(x) if link == "log" else logit(x) if link == "logit" else x**link
    return out


def steps(links: tuple[Link, ...] | None, X: Array) -> Array:
    """Return the derivatives of features with respect to their values on the scale of the links."""
    out = np.ones(np.shape(X))
    for j, link in enumerate(links or ()):
        x = X[:, j]
        if link in NAMES:
            out[:, j] = x if link == "log" else x * (1 - x)
        elif link is not None:
            out[:, j] = np.maximum(x, 1e-300) ** (1 - float(link)) / float(link)
    return out


def undo(links: tuple[Link, ...] | None, X: Array) -> Array:
    """Bring features back from the scale of their links; powers below 0 become 0."""
    if links is None:
        return X
    out = np.array(X, dtype=np.float64)
    for j, link in enumerate(links):
        if link == "log":
            out[:, j] = np.exp(X[:, j])
        elif link == "logit":
            out[:, j] = np.clip(expit(X[:, j]), LEAST_SHARE, MOST_SHARE)
        elif link is not None:
            out[:, j] = np.maximum(X[:, j], 0.0) ** (1 / float(link))
    return out
