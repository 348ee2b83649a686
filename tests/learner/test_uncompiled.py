"""A run starts without torch's compiler, and steps are the ones that torch makes."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import copy, sys, torch, onepass
from onepass.learner.uncompiled import take_step

for method, settings in (("er", {"momentum": 0.9}), ("er-fsl", {"optimizer": "adam"}), ("er-cba", {})):
    onepass.run(onepass.RunConfig(method, batch=200, settings={"memory": 20, **settings}))
print("torch._dynamo" in sys.modules)
layer = torch.nn.Linear(5, 3)
pairs = []
for kind, more in ((torch.optim.SGD, {"momentum": 0.9}), (torch.optim.Adam, {}), (torch.optim.AdamW, {})):
    layers = [copy.deepcopy(layer) for _ in range(2)]
    pairs.append([(one, kind(one.parameters(), lr=0.1, **more)) for one in layers])
x = torch.linspace(-1, 1, 20).view(4, 5)
for ours, theirs in pairs:
    for _ in range(3):
        for _, optimizer in (ours, theirs):
            optimizer.zero_grad()
        for one, _ in (ours, theirs):
            one(x).square().sum().backward()
        hidden = sys.modules.pop("torch._dynamo")
        take_step(ours[1])
        sys.modules["torch._dynamo"] = hidden
        theirs[1].step()
    same = all(map(torch.equal, ours[0].parameters(), theirs[0].parameters()))
    moved = not torch.equal(ours[0].weight, layer.weight)
    print(same, moved)
"""


@pytest.mark.system
def test_a_run_imports_no_compiler_and_steps_are_torchs_bit_for_bit() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n") == ["False", *["True True"] * 3, ""]
