"""How far a fit goes: the modules it visits, and how deep it is at the formula.

``python tests/visits.py`` prints both for a categorical fit of two domains in memory.
"""

import sys
from pathlib import Path

import numpy as np

import condokit
from condokit import ConDoAdapter

_HERE = str(Path(condokit.__file__).parent)
_FORMULA = "law/stacked.py", "solve"  # closed form of the default


def visits():
    """Return the modules that a second, equal fit visits, and frames of ours at the formula."""
    rng = np.random.default_rng(0)
    X, label = rng.normal(size=(400, 5)), np.repeat(["query", "reference"], 200)
    sex = np.array(["f", "m"])[rng.integers(2, size=400)]
    roles = {"domain": label, "confounders": {"sex": sex}}
    adapter = ConDoAdapter().fit(X, **roles)  # imports are no visits
    modules, depths = dict[str, int](), list[int]()

    def note(frame, event, _):
        path = frame.f_code.co_filename
        if event != "call" or not path.startswith(_HERE):
            return
        module = path[len(_HERE) + 1 :]
        modules[module] = modules.get(module, 0) + 1
        if module.endswith(_FORMULA[0]) and frame.f_code.co_name == _FORMULA[1]:
            depth = 0
            while frame is not None:
                depth += frame.f_code.co_filename.startswith(_HERE)
                frame = frame.f_back
            depths.append(depth)

    sys.setprofile(note)
    try:
        adapter.fit(X, **roles)
    finally:
        sys.setprofile(None)
    return modules, min(depths)


if __name__ == "__main__":
    found, depth = visits()
    lines = [f"{calls:6} {module}" for module, calls in sorted(found.items())]
    sys.stdout.write("\n".join([*lines, f"{len(found)} modules; {depth} frames at the formula\n"]))
