"""Time until condokit is there: imports beside those of scikit-learn, and the command's help."""

import subprocess
import sys
import time

import numpy as np


def seconds(*arguments):
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def main(repeats=7):
    for code in ("import condokit", "from condokit import ConDoAdapter"):
        ratios = [
            seconds("-c", code) / seconds("-c", "import sklearn.preprocessing")
            for _ in range(repeats)
        ]
        print(f"{code}: {np.median(ratios):.2f} times scikit-learn's preprocessing (aim 1.3)")
    took = min(seconds("-m", "condokit", "--help") for _ in range(repeats))
    print(f"condokit --help: {took:.2f} s (aim 0.3)")


if __name__ == "__main__":
    main()
