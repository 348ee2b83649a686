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
    cost.main({f"patch-lda {n}": ("patch-lda", {"filters": n}) for n in FILTERS}, __doc__)
