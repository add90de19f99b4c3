"""Penalties and constraints that the paper names as future work, on its own affine KL divergence.

The reverse KL divergence of the paper plus `strength` times sum |A - I|^p of all entries, or with
no negative entry of A, from the identity. Writes results/penalties.csv with all strengths; the
page shows the best one in hindsight.
"""

import warnings

import ansur
import categorical2d
import numpy as np
from methods import rmse
from published import affine_objective
from scipy.optimize import minimize
from tables import write

from condokit import AffineMap, ConDoAdapter
from condokit.paper import ConDo

STRENGTHS = (0.01, 0.1, 1.0, 10.0)


def penalised(p, strength=0.0, power=2.0, bounded=False):
    """Return the best map with a penalty or without negative entries."""
    objective = affine_objective(p, published=False)
    d = objective.d
    identity = np.append(np.eye(d).ravel(), np.zeros(d))
    counted = np.append(np.ones(d * d), np.zeros(d))

    def value(x):
        gap = np.sqrt((x - identity) ** 2 + 1e-6)
        slope = power * gap ** (power - 2) * (x - identity)
        total, gradient = objective.of_numbers(x)
        total += strength * (counted * gap**power).sum()
        return total, gradient + strength * counted * slope

    bounds = [(0, None)] * (d * d) + [(None, None)] * d if bounded else None
    how = {"method": "L-BFGS-B", "bounds": bounds, "options": {"maxiter": 300}}
    x = minimize(value, identity, jac=True, **how).x
    return AffineMap(x[: d * d].reshape(d, d), x[d * d :])


def main():
    """Write errors of all settings."""
    table = [("problem", "method", "rmse")]
    problems = ("two features, no confounding", "two features, confounded")
    problems = dict(zip(categorical2d.SCENARIOS, (*problems, "two features, random matrix")))
    affine = next(name for name in ansur.SCENARIOS if name.startswith("affine"))
    for name, seeds in [*((name, 10) for name in problems), ("ANSUR II", 3)]:
        found = {}
        for seed in range(seeds):
            if name == "ANSUR II":
                p = ansur.draw("affine", *ansur.parts(affine)[1:], seed)
            else:
                p = categorical2d.draw(name, seed)
            data = p.X_query, p.X_reference, p.Z_query, p.Z_reference
            fits = {"KL": ConDo("kl", "affine", steps=100).fit_pair(*data).map_}
            fits["no negative entry"] = penalised(p, bounded=True)
            for power in (1.0, 2.0):
                for strength in STRENGTHS:
                    fits[f"p={power:g}, {strength}"] = penalised(p, strength, power)
            fits["condokit auto"] = ConDoAdapter("auto").fit_pair(*data).map_
            for method, fitted in fits.items():
                found.setdefault(method, []).append(rmse(fitted(p.X_query), p.truth))
        title = problems.get(name, "ANSUR II, affine")
        table += [(title, method, f"{np.mean(errors):.4f}") for method, errors in found.items()]
    write("penalties.csv", table)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
