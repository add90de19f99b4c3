"""One measurement: a method on the data of a file, in a process of its own with one thread.

    python cell.py METHOD data.npz BYTES

Prints "begin" before the timed calls, "end" after them, and last a line of JSON: `seconds`
(processor time of fit and transform, the least of some calls), `wall`, `memory` (the highest
resident size during the calls less that before them, in bytes: VmHWM, which the kernel keeps),
`resident` (in all), `error` (root mean square of the query's values in the reference's units less
their truth, where noise has sd 1), `copy` (seconds of copying both tables once) and `fixed` (those
of the method on 200 + 200 rows and at most 3 features). Of condokit also `stages`, the shares of
its slowest functions. Whoever starts it stops it if it takes too long.
"""

import cProfile
import json
import pstats
import resource
import sys
import time
import warnings

import numpy as np
from peers import METHODS, OURS

warnings.simplefilter("ignore")


def resident(field):
    """Return VmRSS, VmHWM or VmSize of this process, in bytes."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field))


def timed(call):
    start = time.process_time(), time.perf_counter()
    result = call()
    return result, time.process_time() - start[0], time.perf_counter() - start[1]


def error(data, moved, step=100_000):
    total = 0.0
    for k in range(0, len(moved), step):
        truth = (data["Xq"][k : k + step] - data["offset"]) / data["scale"]
        total += float(((np.asarray(moved[k : k + step], float) - truth) ** 2).sum())
    return (total / data["Xq"].size) ** 0.5


def warm_up(prepare, data):
    """Return the time of the method on 200 rows, after a call that imports what it imports late."""
    few = {k: v[:200] for k, v in data.items()}
    few |= {k: data[k][:200, :3] for k in ("Xq", "Xr")}
    try:
        call = prepare(few)
        call()
        return min(timed(call)[1] for _ in range(3))
    except Exception:  # whatever it is: the timed call will show it
        return None


def copy_time(data):
    """Return the time of one copy of both tables into memory that is there already."""
    target = np.zeros_like(data["Xq"])
    times = []
    for _ in range(3):
        start = time.process_time()
        for name in ("Xq", "Xr"):
            np.copyto(target, data[name])
        times.append(time.process_time() - start)
    return min(times)


def stages(call, n_most=3):
    """Return {function of condokit: share of the time inside it}, wrappers of another left out."""
    profile = cProfile.Profile()
    profile.runcall(call)
    stats = pstats.Stats(profile)
    inside = {}
    for (file, _, function), (_, _, _, seconds, _) in stats.stats.items():
        if "/condokit/" in file:
            module = file.rsplit("/condokit/", 1)[1].removesuffix(".py").replace("/", ".")
            inside[f"{module}.{function}"] = seconds / stats.total_tt
    groups = []
    for one in sorted(inside, key=inside.get, reverse=True):
        if groups and inside[one] > 0.9 * inside[groups[-1][0]]:
            groups[-1].append(one)  # the same time, one call further inside
        elif inside[one] >= 0.1:
            groups.append([one])
    # the first group is the whole fit
    return {group[-1]: round(inside[group[-1]], 2) for group in groups[1 : n_most + 1]}


def main(name, path, limit):
    with np.load(path, allow_pickle=False) as file:
        data = {k: file[k] for k in file.files}
    prepare = METHODS[name][0]
    fixed = warm_up(prepare, data)
    call = prepare(data)
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the highest resident size counts from here
    before = resident("VmRSS")
    most = int(float(limit)) + resident("VmSize") - before
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    print("begin", flush=True)
    times, moved = [], None
    while not times or (len(times) < 100 and sum(wall for _, wall in times) < 1):
        del moved
        moved, *took = timed(call)
        times.append(took)
    highest = resident("VmHWM")
    print("end", flush=True)
    if not np.isfinite(moved[:: max(1, len(moved) // 1000)]).all():
        raise ValueError("values that are not finite")
    least = [min(column) for column in zip(*times)]
    found = {"seconds": least[0], "wall": least[1], "memory": highest - before}
    found |= {"resident": highest, "error": error(data, moved), "copy": copy_time(data)}
    found["fixed"] = fixed
    if name in OURS and least[0] < 20:
        found["stages"] = stages(call)
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
