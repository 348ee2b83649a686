"""Samples are learned once, forgotten, relabelled: in memories, in the journal, and exactly where that is possible."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from onepass.errors import UsageError
from onepass.live.corrections import forget, relabel
from onepass.live.journal import Journal, digest_of
from onepass.live.model import Model
from onepass.methods.registry import METHODS, method_class

ANALYTIC = ["ncm", "slda", "randumb", "patch-lda"]
SETTINGS: dict[str, dict[str, Any]] = {"randumb": {"features": 50}, "patch-lda": {"filters": 10, "first": 64}}


def digits(n: int) -> tuple[Tensor, list[str]]:
    data = load_digits()
    return (torch.from_numpy(data.images[:n]) * 15).byte()[:, None], [f"d{c}" for c in data.target[:n]]


def model_of(method: str, **more: Any) -> Model:
    return Model.create((1, 8, 8), method=method, settings=SETTINGS.get(method), net="small-cnn", **more)


@pytest.mark.parametrize("method", ANALYTIC)
def test_what_a_learner_of_statistics_is_given_again_it_never_saw(method: str) -> None:
    x, y = digits(300)
    taught, never = model_of(method), model_of(method)
    taught.learn(x, y)
    kept = [row for row in range(300) if row < 128 or row % 3]
    never.learn(x[kept], [y[row] for row in kept])
    gone = [row for row in range(300) if row not in kept]
    found = forget(taught, x=x[gone])
    exact = 0 if method == "randumb" else len(gone)
    assert (found.forgotten, found.unknown) == (len(gone), ())
    assert found.exact == (sum(row >= 256 for row in gone) if method == "randumb" else exact)
    assert taught.class_counts() == never.class_counts()
    sums: Any = never.learner.sums
    assert torch.allclose(taught.learner.sums, sums, atol=float(1e-4 * sums.abs().max()))  # type: ignore[arg-type]
    assert torch.equal(taught.learner.counts, never.learner.counts)  # type: ignore[arg-type]
    a, b = taught.snapshot().scores(x), never.snapshot().scores(x)
    assert (a - b).abs().max() < 1e-2 * b.abs().max()
    assert (a.argmax(1) == b.argmax(1)).float().mean() > 0.99


def test_patch_lda_says_that_its_filters_stay_and_forgets_what_still_waits_exactly() -> None:
    x, y = digits(100)
    model = model_of("patch-lda")
    model.learn(x[:40], y[:40])
    assert forget(model, x=x[:5]).exact == 5, "no filters yet"
    never = model_of("patch-lda")
    never.declare(model.labels.names)
    never.learn(x[5:40], y[5:40])
    assert torch.equal(model.snapshot().scores(x), never.snapshot().scores(x)), "to the bit"
    model.learn(x, y)
    found = forget(model, x=x[10:12])
    assert (found.forgotten, found.exact, found.influenced) == (2, 0, 2)


def test_an_expert_beside_a_network_forgets_and_corrects_its_share() -> None:
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    names, ids = ["a", "b", "c"] * 20, [str(row) for row in range(60)]

    def taught(rows: list[int], labels: list[str]) -> Any:
        model = Model.create((4,), method="er", settings={"expert": True}, memory=30)
        model.declare(["a", "b", "c"])
        model.learn(x[rows], [labels[row] for row in rows], [ids[row] for row in rows])
        return model

    model = taught(list(range(60)), ["b", *names[1:]])
    assert relabel(model, ["0"], ["a"], x[:1]) == 1
    found = forget(model, ["7", "8"], x[7:9])
    assert (found.forgotten, found.exact) == (2, 0), "the network stays influenced"
    never = taught([row for row in range(60) if row not in (7, 8)], names)
    one, other = model.learner.expert, never.learner.expert
    assert one.counts.tolist() == other.counts.tolist()
    torch.testing.assert_close(one.means + one.origin, other.means + other.origin, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(one.covariance(), other.covariance(), rtol=1e-4, atol=1e-4)


def test_what_an_expert_keeps_until_it_has_filters_is_forgotten_there_too() -> None:
    x, y = digits(100)
    model = Model.create((1, 8, 8), method="er", settings={"expert": True}, net="small-cnn", memory=100)
    model.learn(x, y)
    found = forget(model, x=x[:5])
    assert (found.forgotten, found.from_memory, found.exact) == (5, 5, 0)
    assert len(model.learner.expert.kept) == 95  # type: ignore[union-attr,arg-type]
    assert relabel(model, [model.journal.id_of(9)], ["d8"], x[9:10]) == 1
    assert model.class_counts()["d8"] == y[5:].count("d8") + (y[9] != "d8")


def test_more_than_was_learned_cannot_be_taken_back() -> None:
    model = Model.create((4,), method="slda")
    model.learn(torch.eye(4), ["a", "a", "b", "b"])
    with pytest.raises(UsageError, match="more of class 0 than there are"):
        forget(model, x=torch.eye(4)[[0, 1, 0]], labels=["a"] * 3)
    assert forget(model, x=torch.eye(4)[:1], labels=["a"]).exact == 1
    assert model.class_counts() == {"a": 1, "b": 2}


def test_a_forgotten_sample_is_in_no_memory_and_its_id_is_gone() -> None:
    x, y = digits(60)
    model = model_of("er", memory=40)
    ids = [f"photo-{row}" for row in range(60)]
    model.learn(x, y, ids)
    stored = set(model.stored()[2])
    assert len(stored) == 40
    found = forget(model, [*ids[:30], "never-seen"])
    assert found.unknown == ("never-seen",)
    assert (found.forgotten, found.exact, found.influenced) == (30, 0, 30)
    left = {digest_of(name).hex() for name in ids[30:]}
    assert set(model.stored()[2]) == stored & left
    assert found.from_memory == len(stored - left)
    assert model.learned == 30
    rows = model.stored()[0]
    assert not any((rows == image).flatten(1).all(1).any() for image in x[:30])
    assert model.learn(x[:1], y[:1], ids[:1]).learned == 1, "it may come again"


def test_to_learn_anew_leaves_no_influence_and_the_memory_as_it_was() -> None:
    x, y = digits(60)
    model = model_of("er", memory=40)
    model.learn(x, y)
    found = forget(model, x=x[:20], rebuild=True)
    assert (found.exact, found.influenced) == (20, 0)
    held = model.stored()[2]
    assert len(held) == len(set(held)) == model.memory[0]
    with pytest.raises(UsageError, match="keeps none"):
        forget(model_of("ncm"), ["a"], rebuild=True)


def test_what_is_known_is_not_learned_again() -> None:
    x, y = digits(50)
    model = model_of("er", memory=100)
    assert model.learn(x, y).learned == 50
    assert model.learn(torch.cat([x, x]), y + y).known == 100
    assert len(set(model.stored()[2])) == model.memory[0] == 50
    twice = model_of("er", memory=100)
    assert twice.learn(torch.cat([x[:3], x[:3]]), y[:3] * 2).learned == 3


def test_vectors_without_an_id_count_every_time() -> None:
    model = Model.create((4,), method="slda")
    for _ in range(2):
        assert model.learn(torch.eye(4), ["a", "a", "b", "b"]).learned == 4
    assert model.learned == 8


@pytest.mark.parametrize("method", ["slda", "patch-lda"])
def test_a_corrected_label_counts_as_if_it_had_come_first(method: str) -> None:
    x, y = digits(200)
    wrong = ["d0" if row >= 190 else label for row, label in enumerate(y)]
    model, right = model_of(method), model_of(method)
    model.learn(x, wrong)
    right.learn(x, y)
    again = model.learn(x[190:], y[190:])
    assert again.relabelled == sum(a != b for a, b in zip(wrong, y, strict=True))
    assert model.class_counts() == right.class_counts()
    assert torch.allclose(model.learner.sums, right.learner.sums, atol=1e-2)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="Give X"):
        relabel(model, [model.journal.id_of(195)], ["d1" if y[195] != "d1" else "d2"])


def test_a_corrected_label_is_corrected_in_the_memory_too() -> None:
    x, y = digits(30)
    model = model_of("er", memory=30)
    model.learn(x, y, [str(row) for row in range(30)])
    assert relabel(model, ["3", "4"], ["new", y[4]], x[3:5]) == 1
    names = dict(zip(model.stored()[2], model.stored()[1], strict=True))
    assert names[digest_of("3").hex()] == "new"
    assert len(names) == model.memory[0] == 30
    with pytest.raises(UsageError, match="ids of samples that are known"):
        relabel(model, ["x"], ["y"])


REPLAY = [name for name in METHODS if "memory" in method_class(name).Config.__dataclass_fields__]


@pytest.mark.parametrize("method", [name for name in REPLAY if name not in ("ocm", "onpro", "mose", "ccl-dc")])
def test_holes_in_a_memory_are_filled_and_never_read(method: str) -> None:
    """In every method: each row of the memory is a sample that was learned and not forgotten."""
    x, y = digits(120)
    settings = {"subspace": 10} if method.startswith("er-fsl") else {}
    model = Model.create((1, 8, 8), method=method, net="small-cnn", memory=20, settings=settings, augment="none")
    model.learn(x[:60], y[:60])
    forget(model, x=x[:30])
    model.resize_memory(25)
    model.learn(x[60:], y[60:])
    rows, names, ids = model.stored()
    assert 0 < len(rows) <= 25
    known = {model.journal.id_of(number): number for number in range(30, 120)}
    assert set(ids) <= set(known)
    for image, name, number in zip(rows, names, (known[i] for i in ids), strict=True):
        assert name == y[number]
        if method != "gmed":  # which edits what it stores
            assert torch.equal(image, x[number])


def test_a_journal_finds_what_it_holds_at_any_size() -> None:
    journal = Journal()
    digests = [digest_of(str(n)) for n in range(20_000)]
    for start in range(0, 20_000, 500):
        journal.add(digests[start : start + 500], [start % 7] * 500)
    assert [journal.find(digests[n]) for n in range(0, 20_000, 997)] == list(range(0, 20_000, 997))
    assert journal.find(digest_of("no")) is None
    journal.erase([5, 19_999])
    assert journal.find(digests[5]) is None
    assert journal.known == 19_998
    again = Journal.from_tree(journal.to_tree(), 7 * 500)
    assert again.find(digests[19_998]) == 19_998
    assert again.find(digests[19_999]) is None
    assert digest_of(again.id_of(3)) == digests[3]


@pytest.mark.parametrize("known", [False, True])
def test_of_a_sample_that_comes_twice_in_a_call_the_last_counts(known: bool) -> None:
    model = Model.create((3,))
    model.learn(torch.eye(3), ["a", "b", "a"], ["1", "2", "3"])
    row = torch.ones(2, 3)
    model.learn(row, ["b", "a"], ["1", "1"] if known else ["9", "9"])
    assert model.class_counts() == {"a": 2 + (not known), "b": 1}
    assert model.journal.class_of(model.journal.find(digest_of("1" if known else "9")) or 0) == 0


@pytest.mark.parametrize("name", ["00 11 22 33 44 55 66 77 88 99 aa", "0" * 31 + " ", "\t" * 32, "\udcff", ""])
def test_any_word_is_an_id(name: str) -> None:
    model = Model.create((3,))
    model.learn(torch.eye(3), [*"aba"], [name, "2", "3"])
    assert model.learn(torch.eye(3)[:1], ["b"], [name]).relabelled == 1
    assert forget(model, [name], torch.eye(3)[:1]).exact == 1


def test_numbers_of_ids_labels_and_samples_that_differ_are_refused() -> None:
    model = Model.create((3,))
    model.learn(torch.eye(3), [*"aba"], [*"123"])
    for call in (
        lambda: model.learn(torch.eye(3), [*"aba"], "123"),
        lambda: model.learn(torch.eye(3), [*"aba"], ["1"]),
        lambda: forget(model, ["1"], torch.eye(3)),
        lambda: forget(model, None, torch.eye(3), ["a"]),
        lambda: relabel(model, ["1"], ["a", "b"]),
        lambda: relabel(model, ["1", "2"], ["b", "a"], torch.eye(3)[:1]),
    ):
        with pytest.raises(UsageError, match="Expected"):
            call()
    assert model.class_counts() == {"a": 2, "b": 1}


def test_all_that_was_in_memory_can_be_forgotten_and_learned_anew() -> None:
    model = Model.create((3,), method="er", memory=10)
    model.learn(torch.eye(3), [*"aba"], [*"123"])
    assert forget(model, [*"123"], rebuild=True).exact == 3
    assert model.memory == (0, 10)
    assert not model.learner.seen
    assert model.learn(torch.eye(3), [*"aba"], [*"123"]).learned == 3


def test_a_memory_for_which_there_is_no_room_changes_nothing() -> None:
    model = Model.create((3,), method="er", memory=10)
    model.learn(torch.eye(3), [*"aba"])
    with pytest.raises(UsageError, match="no room"):
        model.resize_memory(10**13)
    assert model.memory == (3, 10)
    model.resize_memory(2)
    assert model.memory == (2, 2)
