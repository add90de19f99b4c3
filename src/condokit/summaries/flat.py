"""From `Domains` to both domains as Gaussians, for the maps that have a full matrix."""

from __future__ import annotations

import numpy as np

from condokit.checks import Array

_ROUNDING = 1e-13  # relative spread below which a feature is constant


def is_flat(mean: Array, var: Array) -> Array:
    """Mark features whose spread within strata is nothing but rounding."""
    return var.max(axis=0) <= (_ROUNDING * np.abs(mean).max(axis=0)) ** 2
