"""From names to ingredients: what divergence="auto" stands for, and what cannot be used."""

from collections.abc import Mapping
from typing import Any

from condokit.checks import check_seed, is_number, pick, refusal
from condokit.data.study import Study
from condokit.divergences import DIVERGENCES
from condokit.divergences.samples import StratumMeans
from condokit.fit.fit_map import Recipe
from condokit.maps.families import MAPS, Affine, LocationScale, MapFamily

# What divergence="auto" means: the first line that fits the family of maps and the confounders
_RULES = (
    # family      confounders    divergence
    ("monotone", "any", "likelihood"),
    ("rectangular", "strata", "regression"),  # between different features
    ("rectangular", "any", "mmd"),
    ("low-rank", "any", "reverse-kl"),
    ("rigid", "none", "pc-match"),
    ("own", "none", "likelihood"),  # a family of matrices that the user defined
    ("any", "none", "ot"),
    ("any", "any", "likelihood"),
)
ONLY_AUTO = {"regression": StratumMeans}  # divergences that have no name of their own
NOTHING_NAMED = {"prior": "product", "conditional": "auto"}  # the defaults of both


def refuse_unused(settings: Mapping[str, Any], recipe: Recipe, domains: Study, name: str) -> None:
    """Refuse a `prior` or `conditional` that the user named if the fit would not use it."""
    family, needed = recipe.family, "samples" if domains.is_rectangular else None
    for argument, default in NOTHING_NAMED.items():
        given = settings[argument]
        if isinstance(given, str) and given == default:
            continue
        what = f"{argument}={given!r}" if isinstance(given, str) else f"'{argument}'"
        if not domains.confounders:
            text = " is of no use without confounders. Name some, or leave it out."
            raise refusal(f"{{@{what}}}" + text)
        used = recipe.divergence.uses(family)
        # the kernel of a prior is also that of the conditional
        if argument in used or (used and getattr(given, "kernel", None) is not None):
            continue
        others = [
            repr(other)
            for other, kind in DIVERGENCES.items()
            if argument in kind().uses(family)
            and kind().supports(family) is None
            and needed in (None, kind.forms.get(family.form))
        ]
        text = f"{{@{what}}} is not used by {{@divergence={name!r}}} for this map"
        text += ", which is what 'auto' stands for here" if is_auto(settings["divergence"]) else ""
        advice = f"Name a divergence that uses it ({', '.join(others)}), or leave" if others else ""
        raise refusal(f"{text}. {advice or 'Leave'} it out.")


def rule(family: MapFamily, domains: Study, shrinkage: Any) -> str:
    """Return the name of the divergence that "auto" means for this family and these domains.

    Between different features, a regression of means of strata needs more than one stratum. It
    always has a ridge penalty, so it is not taken for shrinkage=None.
    """
    forms = {"any", "rectangular" if domains.is_rectangular else family.form}
    if family.form == "matrix" and not family.is_free:
        forms.add("rigid" if family.is_rigid else "own")
    known = "some" if domains.confounders else "none"
    if domains.is_rectangular and known == "some" and shrinkage is not None:
        known = "strata" if domains.continuous or _n_common(domains) > 1 else "some"
    return next(rule for kind, given, rule in _RULES if kind in forms and given in ("any", known))


def _n_common(domains: Study) -> int:
    """Return how many combinations of categories both domains have."""
    strata = domains.strata()
    return int(((strata.count_query > 0) & (strata.count_reference > 0)).sum())


def seeded(
    argument: str, value: Any, named: Mapping[str, Any], base: type, settings: Mapping[str, Any]
) -> Any:
    """Return an ingredient; if it was given by name and draws at random, it gets the seed."""
    ingredient = pick(argument, value, named, base)
    if isinstance(value, str) and settings["random_state"] is not None:
        seed = check_seed(settings["random_state"])
        if "random_state" in ingredient.get_params():
            ingredient.set_params(random_state=seed)
    return ingredient


def checked_shrinkage(amount: Any) -> Any:
    """Return the amount of shrinkage, as a float if it is a number."""
    if amount is None or is_auto(amount):
        return amount
    if is_number(amount) and 0 <= amount <= 1:
        return float(amount)
    raise ValueError(
        f"'shrinkage' must be 'auto', None or a number from 0 to 1. Got {amount!r} instead."
    )


def is_auto(value: Any) -> bool:
    """Return whether a setting is "auto"."""
    return isinstance(value, str) and value == "auto"


def takes_any_features(map: Any, divergence: Any) -> bool:
    """Return whether query and reference may have different features (a rectangular matrix)."""
    family = MAPS.get(map, LocationScale)() if isinstance(map, str) else map
    if type(family) is Affine and is_auto(divergence):
        return True
    kind = DIVERGENCES.get(divergence) if isinstance(divergence, str) else divergence
    if kind is None or type(family) is not Affine:
        return False
    kind = kind() if isinstance(kind, type) else kind
    return getattr(kind, "forms", {}).get("matrix") == "samples" and kind.supports(family) is None
