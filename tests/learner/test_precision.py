"""The body computes in bf16, all else in fp32: what is computed, kept, chosen, refused, stored and continued."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import onepass
from helpers import everything, hidden_layer, make, normed_net, observe_all, plain_net, some_batch, some_images
from onepass.bench.run import Run
from onepass.bench.run_config import RunConfig
from onepass.bench.runner import Progress, run
from onepass.config import LearnerConfig, options
from onepass.errors import UsageError
from onepass.executors import run_many
from onepass.learner.base import Learner
from onepass.learner.batch import Task
from onepass.learner.precision import computes_bf16, settled
from onepass.learner.promises import PROMISES
from onepass.learner.toy_problem import toy_tasks
from onepass.learner.trial import Trial, learn
from onepass.methods.er import ER, ERConfig
from onepass.methods.er_dvc import ERDVC
from onepass.methods.gmed import GMED
from onepass.methods.gss import GSS
from onepass.methods.mir import MIR
from onepass.methods.registry import METHODS, method_class
from onepass.methods.slda import SLDA

BY_GRADIENT = [name for name in METHODS if "precision" in options(method_class(name).Config)]
# Where few bits would be lost for good: losses, distances, choices, and what is kept.
IN_FULL = ("_log_softmax", "_softmax", "nll_loss_forward", "linalg_vector_norm", "topk", "sort", "exp", "log", "lerp")


@pytest.fixture(autouse=True)
def _bf16_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """All processors give the same answers, by instructions or by emulation: those without are tested too."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True}, raising=False)


class InBf16(TorchDispatchMode):
    """The operations that got a tensor of bf16."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(value.dtype == torch.bfloat16 for value in _tensors(args)):
            self.names.add(func.overloadpacket.__name__)
        return result


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def test_features_are_those_of_a_body_whose_inputs_and_weights_are_rounded_and_the_head_is_not() -> None:
    net = plain_net(8, 4)
    layer, x = hidden_layer(net), some_images(6) / 255
    make(ER, net, precision="bf16")
    weight, bias = layer.weight.to(torch.bfloat16), layer.bias.to(torch.bfloat16)
    known = F.linear(x.flatten(1).to(torch.bfloat16), weight, bias).relu().to(torch.float32)
    assert torch.equal(net.features(x), known)
    assert torch.equal(net(x), F.linear(known, net.head.weight, net.head.bias))
    assert not torch.equal(plain_net(8, 4).features(x), known)


def test_a_step_in_bf16_is_nearly_one_in_fp32_and_leaves_full_weights() -> None:
    batch = some_batch(8, range(4))
    nets = {}
    for precision in ("fp32", "bf16"):
        learner = make(ER, normed_net(8, 4), precision=precision)
        learner.observe(batch)
        nets[precision] = learner.net.state_dict()
    for name, value in nets["fp32"].items():
        torch.testing.assert_close(nets["bf16"][name], value, rtol=0.02, atol=0.01)
    weight = nets["bf16"]["body.1.weight"]
    assert not torch.equal(weight, nets["fp32"]["body.1.weight"])
    assert not torch.equal(weight, weight.to(torch.bfloat16).float())  # more digits than bf16 has


@pytest.mark.parametrize("name", BY_GRADIENT)
def test_of_every_method_only_the_body_computes_in_bf16_and_what_is_kept_has_all_digits(name: str) -> None:
    cls = method_class(name)
    learner = Trial(cls, cls.Config.from_json({"precision": "bf16"}))()
    with InBf16() as seen:
        learn(learner, toy_tasks()[:2])
        learner.predict(some_images(4, learner.problem.shape))
    assert any("convolution" in operation for operation in seen.names)
    assert not seen.names.intersection(IN_FULL)
    kept = [*learner.parameters(), *learner.buffers()]
    for _, optimizer in learner.optimizers():
        kept += [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    assert {value.dtype for value in kept if value.is_floating_point()} == {torch.float32}


@pytest.mark.parametrize("name", ["er", "er-fsl+", "ocm", "mose", "gss", "gmed", "ccl-dc"])
@pytest.mark.parametrize("promise", ["same seed, same bits", "save in mid-task and load: identical"])
def test_promises_of_the_contract_are_kept_in_bf16(promise: str, name: str) -> None:
    cls = method_class(name)
    PROMISES[promise](Trial(cls, cls.Config.from_json({"precision": "bf16"})))


@pytest.mark.parametrize("cls", [MIR, ERDVC, GMED])
def test_looks_ahead_are_in_fp32_and_steps_in_bf16(cls: type[MIR | GMED]) -> None:
    learner = make(cls, normed_net(8, 4), replay=3, precision="bf16")
    observe_all(learner, [some_batch(4, range(4), seed=i) for i in range(4)])
    with InBf16() as looking:
        learner.choose(everything(learner))
    assert not looking.names
    with InBf16() as learning:
        learner.batch_loss(some_batch(4, range(4)))
    assert "addmm" in learning.names


def test_gss_compares_gradients_in_fp32() -> None:
    learner = make(GSS, plain_net(8, 4), memory=8, replay=3, precision="bf16")
    observe_all(learner, [some_batch(4, range(4), seed=i) for i in range(4)])
    with InBf16() as seen:
        learner.remember(some_batch(4, range(4), seed=9))
    assert not seen.names


def test_bf16_is_refused_where_it_is_emulated_and_auto_then_means_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    assert computes_bf16("cpu")
    assert settled(ERConfig(precision="auto"), "cpu").precision == "bf16"
    assert make(ER, plain_net(8, 4), precision="auto").config.precision == "bf16"
    slow = make(ER, plain_net(8, 4), precision="bf16")
    slow.begin_task(Task(0, (0, 1, 2, 3)))
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_f": True, "avx512_bf16": False}, raising=False)
    assert not computes_bf16("cpu")
    config = RunConfig("er", settings={"precision": "auto"}).on("cpu")
    assert (config, config.key) == (RunConfig("er"), RunConfig("er").key)
    refused = r"expected a device that computes in bf16 \(avx512_bf16, amx_bf16 or a GPU\), got cpu, .*--precision fp32"
    with pytest.raises(UsageError, match=refused):
        slow.observe(some_batch(4, range(4)))
    assert slow.predict(some_images(4)).shape == (4,)  # a learner that was trained elsewhere
    with pytest.raises(UsageError, match=refused):
        Run(RunConfig("er", settings={"precision": "bf16"}))
    with pytest.raises(UsageError, match=refused):
        run_many([RunConfig("er", settings={"precision": "bf16"})], Path("nowhere"))


def test_methods_of_statistics_have_no_precision() -> None:
    assert "precision" not in options(SLDA.Config)
    assert settled(SLDA.Config(), "cpu") == SLDA.Config()


def test_the_precision_is_part_of_the_key_unless_it_is_fp32() -> None:
    plain, low = (RunConfig("er", settings={"precision": precision}) for precision in ("fp32", "bf16"))
    assert plain.key == RunConfig("er").key == "7b3840b63e"
    assert low.key != plain.key
    assert RunConfig("er", settings={"precision": "auto"}).on("cpu").key == low.key


def stopping(done: int, total: int) -> None:
    if done == 8:
        raise KeyboardInterrupt


def test_a_run_in_bf16_is_stored_as_such_and_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    config = RunConfig("er", batch=50, settings={"memory": 30, "precision": "auto"})
    stop: Progress = stopping
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path, progress=stop)
    done: list[int] = []
    result = run(config, tmp_path, progress=lambda step, total: done.append(step))
    assert done[0] == 9
    assert result.protocol["precision"] == "bf16"
    assert result.config.to_json()["settings"]["precision"] == "bf16"
    assert result.fingerprint == run(config).fingerprint
    assert result.fingerprint != run(RunConfig("er", batch=50, settings={"memory": 30})).fingerprint


def test_a_saved_learner_remembers_its_precision(tmp_path: Path) -> None:
    problem = onepass.Problem(4, (3, 8, 8))
    learner = onepass.build("er", problem, {"precision": "auto", "memory": 20}, net="small-cnn")
    observe_all(_learner(learner), [some_batch(4, range(4), seed, (3, 8, 8)) for seed in range(3)])
    onepass.save(learner, tmp_path / "model")
    loaded = _learner(onepass.load(tmp_path / "model"))
    assert loaded.config.precision == loaded.net.precision == "bf16"
    batch = some_batch(4, range(4), 7, (3, 8, 8))
    assert torch.equal(loaded.observe(batch), learner.observe(batch))


def _learner(learner: object) -> Learner:
    assert isinstance(learner, Learner)
    assert isinstance(learner.config, LearnerConfig)
    return learner


def test_a_frozen_encoder_computes_in_bf16_and_gives_fp32() -> None:
    layer = torch.nn.Linear(16, 6)
    body = torch.nn.Sequential(torch.nn.Flatten(), layer).requires_grad_(False)
    learner = onepass.build("er", onepass.Problem(4, (1, 4, 4)), {"precision": "bf16"}, net=body)
    x = some_images(5)
    known = F.linear((x / 255).flatten(1).to(torch.bfloat16), layer.weight.bfloat16(), layer.bias.bfloat16())
    assert torch.equal(learner.encode(x), known.float())


def test_what_is_exported_computes_in_fp32() -> None:
    learner = make(ER, plain_net(8, 4), precision="bf16")
    learner.observe(some_batch(8, range(4)))
    x = some_images(5)
    with InBf16() as seen:
        scores = learner.snapshot().exact_scores(x)
    assert not seen.names
    assert torch.equal(scores, F.linear(hidden_layer(learner.net)((x / 255).flatten(1)).relu(), *_head(learner)))
    assert learner.net.precision == "bf16"


def _head(learner: Learner) -> tuple[Tensor, Tensor]:
    return learner.net.head.weight, learner.net.head.bias
