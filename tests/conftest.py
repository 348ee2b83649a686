"""One thread for each test process: two share a machine, and bits depend on the number of threads."""

import torch

torch.set_num_threads(1)
