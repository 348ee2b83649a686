"""Each change's step time (CPU time) over ER's, beside its training FLOPs over ER's: benchmarks/cost.py for changes.

python studies/er_fsl_plus/changes_cost.py [--save results/benchmarks/changes.json] [CHANGE ...]
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent.parent / "benchmarks"))

import cost
import plus

CASES = {name: (plus.learner(one), plus.settings(one, cost.SETTING[0])) for name, one in plus.CHANGES.items()}

if __name__ == "__main__":
    cost.main(CASES, __doc__)
