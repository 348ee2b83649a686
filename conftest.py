"""One core, and so one thread, for each test process: two share a machine, and bits depend on the number of threads."""

import os

import torch

if "PYTEST_XDIST_WORKER" in os.environ and hasattr(os, "sched_setaffinity"):
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw")) % len(cores)]})
torch.set_num_threads(1)
