"""FLOPs, time and bytes of Patch-LDA by its number of filters, beside ER's: benchmarks/cost.py with these cases.

python studies/never_forget/sizes_cost.py --save results/benchmarks/sizes.json
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import cost

FILTERS = (100, 200, 400, 1000, 1500, 2000)

if __name__ == "__main__":
    cases = {f"patch-lda {n}": {"filters": n} for n in FILTERS}
    for filters, pairs in ((200, 64), (300, 96)):
        size = {"filters": filters, "threshold": 0.5, "pairs": pairs}
        cases[f"patch-lda {filters} --threshold 0.5 --pairs {pairs}"] = size
    cost.main({name: ("patch-lda", settings) for name, settings in cases.items()}, __doc__)
