"""An ingredient that is named, or a setting of one, changes the result or is refused."""

import inspect

import numpy as np
import pytest

from condokit import ConDoAdapter, KernelSmoother, LowRank, ProductPrior
from condokit.compare.priors import PRIORS
from condokit.conditionals import CONDITIONALS
from condokit.divergences import DIVERGENCES
from condokit.maps.families import MAPS

pytestmark = pytest.mark.filterwarnings("ignore")


def rows(given, n=60, d=4):
    """Return skewed features that follow a category, a number, both or nothing, and these."""
    rng = np.random.default_rng(3)

    def side(n, share):
        level, z = rng.random(n) < share, rng.uniform(0, 1 + share, n)
        means = np.outer(2 * level + (z if given != "category" else 0), np.arange(1, d + 1))
        X = means + rng.gamma(2, size=(n, d)) @ (np.eye(d) + 0.3 * rng.normal(size=(d, d)))
        confounders = {"level": np.where(level, "a", "b"), "z": z}
        names = {"category": ["level"], "number": ["z"], "both": ["level", "z"], "nothing": []}
        return X, {name: confounders[name] for name in names[given]} or None

    (X, Z), (Y, W) = side(n, 0.3), side(n + 20, 0.6)
    return 2 * X + 5, Y, Z, W


def result(data, **settings):
    """Return the numbers of the map and weights of strata with the adapter, or a refusal."""
    try:
        adapter = ConDoAdapter(min_overlap=0, **settings).fit_pair(*data)
    except ValueError as error:
        return str(error)
    found = adapter.map_
    numbers = (found.values,) if found.kind == "monotone" else (found.A, found.b)
    return [*(part.ravel() for part in numbers), adapter.support_.weights], adapter


def differ(one, other):
    (left, _), (right, _) = one, other
    return any(
        a.shape != b.shape or not np.allclose(a, b, rtol=1e-9, atol=1e-12)
        for a, b in zip(left, right, strict=True)
    )


FAMILIES = {**dict.fromkeys([*MAPS, "auto"]), "low-rank": LowRank(rank=1)}


@pytest.mark.parametrize("divergence", ["auto", *DIVERGENCES])
@pytest.mark.parametrize("given", ["category", "number", "nothing"])
def test_a_prior_or_conditional_that_is_named_is_used_or_refused(divergence, given):
    data = rows(given, n=20, d=2)
    named = [("prior", name) for name in PRIORS if name != "product"]
    named += [("conditional", name) for name in CONDITIONALS if name != "chained"]
    used = refused = 0
    for family, instance in FAMILIES.items():
        settings = {"map": instance or family, "divergence": divergence}
        plain = result(data, **settings)
        # "auto" fits all the others: one of each argument shows that it passes them on
        for argument, name in named if family != "auto" else (named[0], named[-1]):
            found = result(data, **settings, **{argument: name})
            if isinstance(found, str):
                refused += 1
                about = isinstance(plain, str) or argument in found or "stratified" in found
                assert about, (family, argument, name, found)
                continue
            used += 1
            same = argument == "conditional" and plain[1].conditional_ == name
            assert same or differ(plain, found), (family, argument, name)
    assert refused
    assert used or given == "nothing" or divergence == "auto"


def test_the_refusal_names_what_uses_it():
    data = rows("category", d=3)
    for argument, name in (("prior", "paper"), ("conditional", "kernel")):
        message = result(data, **{argument: name})
        start = f"{argument}='{name}' is not used by divergence='likelihood'"
        assert message.startswith(start)
        assert "which is what 'auto' stands for here" in message
        for other in ("reverse-kl", "forward-kl", "ot", "mmd", "energy"):
            assert repr(other) in message
            assert not isinstance(result(data, divergence=other, **{argument: name}), str)
        assert "of no use without confounders" in result(rows("nothing"), **{argument: name})


def kernel(left, right):
    return np.exp(-(np.subtract.outer(np.asarray(left, float), np.asarray(right, float)) ** 2))


LOCAL = KernelSmoother(kernel=kernel)
SMOOTH = {"given": "number", "divergence": "reverse-kl"}
ROWS = {"given": "category", "map": "affine"}
MANY = {"given": "category", "n": 4000, "d": 2}  # beyond what is compared exactly
MIRRORED = {"given": "category", "divergence": "energy", "n": 400, "d": 2}
LOG = {"given": "category", "divergence": "reverse-kl"}
# (argument, name, setting): another value than the default, and where it matters
WALK = {
    ("prior", "product", "variant"): ("paper", SMOOTH),
    ("prior", "product", "kernel"): (
        kernel,
        SMOOTH | {"conditional": KernelSmoother(kernel=kernel)},
    ),
    ("prior", "product", "bandwidth"): (0.5, SMOOTH),
    ("conditional", "kernel", "bandwidth"): (0.3, SMOOTH),
    ("conditional", "kernel", "kernel"): (kernel, SMOOTH | {"prior": ProductPrior(kernel=kernel)}),
    ("conditional", "chained", "n_draws"): (7, SMOOTH),
    ("conditional", "chained", "n_iter"): (1, SMOOTH),
    ("conditional", "chained", "n_neighbors"): (9, SMOOTH),
    ("conditional", "chained", "n_estimators"): (3, SMOOTH),
    ("conditional", "chained", "fraction"): (0.4, SMOOTH),
    ("divergence", "reverse-kl", "variant"): ("paper", {"given": "category"}),
    ("divergence", "likelihood", "residuals"): ("normal", {"given": "category"}),
    ("divergence", "mmd", "scales"): ((0.5,), {"given": "category"}),
    ("divergence", "mmd", "max_rows"): (10, {"given": "category"}),
    ("divergence", "mmd", "max_iter"): (2, ROWS),
    ("divergence", "mmd", "n_fourier"): (300, MANY),
    ("divergence", "energy", "max_rows"): (10, {"given": "category"}),
    ("divergence", "energy", "max_iter"): (2, ROWS),
    ("map", "affine", "n_starts"): (1, {"given": "category", "divergence": "mmd"}),
    ("map", "affine", "max_iter"): (1, {"given": "category", "divergence": "reverse-kl"}),
    ("map", "affine", "orientation"): ("kept", MIRRORED),
    ("map", "orthogonal", "orientation"): ("kept", MIRRORED),
    ("map", "similarity", "orientation"): ("kept", MIRRORED),
    ("map", "low-rank", "rank"): (1, {"given": "category"}),
    **{("map", name, "links"): ("log", LOG) for name in MAPS},
}
KINDS = {"map": MAPS, "prior": PRIORS, "conditional": CONDITIONALS, "divergence": DIVERGENCES}


def test_every_setting_of_every_ingredient_is_walked():
    settings = {
        (argument, name, setting)
        for argument, named in KINDS.items()
        for name, make in named.items()
        for setting in inspect.signature(make().__class__).parameters
        if setting != "random_state" and (argument, name) != ("prior", "paper")
    }
    assert set(WALK) == settings


@pytest.mark.parametrize(("argument", "name", "setting"), WALK)
def test_a_setting_changes_the_result_or_is_refused(argument, name, setting):
    if name == "chained":
        pytest.importorskip("lightgbm")
    other, where = WALK[argument, name, setting]
    sizes = {key: where[key] for key in ("n", "d") if key in where}
    data = rows(where["given"], **sizes)
    if setting == "links":
        data = (np.exp(data[0] / 20), np.exp(data[1] / 20), *data[2:])
    if setting == "orientation":
        data = (data[0] * np.array([-1.0, 1.0]), *data[1:])
    settings = {key: value for key, value in where.items() if key not in ("given", "n", "d")}
    if argument == "map" and name in ("monotone",):
        settings.pop("divergence")
    make = KINDS[argument][name]
    plain, found = (
        result(data, **settings, **{argument: ingredient})
        for ingredient in (make(), make().set_params(**{setting: other}))
    )
    if isinstance(found, str):
        assert setting in found
    elif isinstance(plain, str):  # of a kernel that only one of two ingredients had
        assert "given to both" in plain
    else:
        linked = setting == "links" and plain[1].map_.links != found[1].map_.links
        assert linked or differ(plain, found)
