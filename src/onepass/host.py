"""The machine that runs are made on."""

from __future__ import annotations

import os
import platform
from typing import Any


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def host_facts(device: str) -> dict[str, Any]:
    """Bits are the same for the same versions, device and threads."""
    import numpy
    import torch

    from onepass import __version__

    return {
        "onepass": __version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "device": device,
        "threads": torch.get_num_threads(),
    }
