"""The memory keeps every sample of the stream equally likely, and what belongs together stays together."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import chi2
from torch import Tensor
from torch.overrides import TorchFunctionMode

from helpers import linux_only, rng
from onepass.learner.batch import Batch
from onepass.learner.memory import Memory

M, N = 3, 12


def memory_of(
    capacity: int, seed: int = 0, shape: tuple[int, ...] = (1, 1, 1), dtype: torch.dtype = torch.uint8
) -> Memory:
    return Memory(capacity, shape, dtype, seed=seed)


def numbered(first: int, n: int) -> Batch:
    """Samples whose only pixel and whose label are their position in the stream."""
    ids = torch.arange(first, first + n)
    return Batch(ids.to(torch.uint8).view(n, 1, 1, 1), ids)


def pour(memory: Memory, n: int, size: int, first: int = 0) -> Memory:
    """The next n numbered samples, in batches of a size."""
    for start in range(first, first + n, size):
        batch = numbered(start, min(size, first + n - start))
        memory.write(memory.reservoir(len(batch)), batch)
    return memory


def held(memory: Memory) -> list[int]:
    return memory.field("y")[: len(memory)].tolist()


def published_stream(seed: int, size: int) -> list[int]:
    """What stays by the published batch form: all indices of a batch from U(0, samples seen before the batch)."""
    draws, slots, seen = rng(seed), list[int](), 0
    for start in range(0, N, size):
        batch = list(range(start, min(start + size, N)))
        room = M - len(slots)
        slots, batch, seen = slots + batch[:room], batch[room:], seen + len(batch[:room])
        for sample, draw in zip(batch, (torch.rand(len(batch), generator=draws) * seen).long().tolist(), strict=True):
            if draw < M:
                slots[draw] = sample
        seen += len(batch)
    return slots


def our_stream(seed: int, size: int) -> list[int]:
    return held(pour(memory_of(M, seed), N, size))


def p_of_equal_inclusion(stream: Callable[[int, int], list[int]], size: int, streams: int = 1200) -> float:
    """Chi-square over positions. Exactly M of N are kept, so inclusions are correlated: hence (N - 1) / N."""
    counts = torch.zeros(N, dtype=torch.float64)
    for seed in range(streams):
        kept = stream(seed, size)
        assert len(set(kept)) == M
        counts[kept] += 1
    p = M / N
    statistic = ((counts - streams * p) ** 2).sum().item() / (streams * p * (1 - p)) * (N - 1) / N
    return float(chi2.sf(statistic, N - 1))


@pytest.mark.parametrize("size", [1, 4])
def test_reservoir_keeps_every_position_equally_often(size: int) -> None:
    assert p_of_equal_inclusion(our_stream, size) > 1e-3


@pytest.mark.parametrize("size", [1, 4])
def test_the_published_batch_form_does_not_and_this_test_can_tell(size: int) -> None:
    assert p_of_equal_inclusion(published_stream, size) < 1e-6


def test_reservoir_keeps_every_set_equally_often() -> None:
    streams, m, n = 1500, 2, 6
    counts = dict.fromkeys(itertools.combinations(range(n), m), 0)
    for seed in range(streams):
        counts[tuple(sorted(held(pour(memory_of(m, seed), n, 3))))] += 1
    expected = streams / math.comb(n, m)
    statistic = sum((count - expected) ** 2 / expected for count in counts.values())
    assert chi2.sf(statistic, len(counts) - 1) > 1e-3


def test_a_memory_as_large_as_the_stream_keeps_the_past_in_order() -> None:
    for capacity in (20, 23):
        memory = pour(memory_of(capacity), 20, 6)
        assert held(memory) == list(range(20))
        assert memory.seen == 20


def test_a_batch_that_straddles_the_filling_point_fills_first_and_then_draws() -> None:
    later = 0
    for seed in range(200):
        memory = pour(memory_of(5, seed), 3, 3)
        slots = memory.reservoir(6).tolist()  # positions 3..8 of the stream
        assert slots[:2] == [3, 4]
        assert all(-1 <= slot < 5 for slot in slots[2:])
        later += sum(slot >= 0 for slot in slots[2:])
    kept = [5 / 6, 5 / 7, 5 / 8, 5 / 9]  # by algorithm R, for the 6th to the 9th sample
    deviation = math.sqrt(200 * sum(p * (1 - p) for p in kept))
    assert abs(later - 200 * sum(kept)) < 4 * deviation


def test_reservoir_draws_against_each_samples_own_position() -> None:
    """The n-th sample, counted from 1, takes each slot with probability 1 / n: also inside one batch."""
    streams = 4000
    hits = torch.zeros(4, dtype=torch.float64)
    for seed in range(streams):
        memory = memory_of(1, seed)
        memory.reservoir(1)
        hits += (memory.reservoir(4) == 0).double()
    for share, n in zip((hits / streams).tolist(), (2, 3, 4, 5), strict=True):
        assert abs(share - 1 / n) < 4 * math.sqrt(1 / n * (1 - 1 / n) / streams)


def test_seen_counts_samples_that_are_not_stored() -> None:
    assert pour(memory_of(3), 50, 7).seen == 50


def test_another_seed_keeps_other_samples_and_the_same_seed_the_same() -> None:
    assert held(pour(memory_of(5, seed=1), 100, 10)) == held(pour(memory_of(5, seed=1), 100, 10))
    assert held(pour(memory_of(5, seed=1), 100, 10)) != held(pour(memory_of(5, seed=2), 100, 10))


def test_of_two_claims_to_a_slot_the_later_wins() -> None:
    memory = pour(memory_of(4), 4, 4)
    memory.write(torch.tensor([2, 0, 2, 0, 2]), numbered(10, 5))
    assert held(memory) == [13, 1, 14, 3]


def test_a_slot_of_minus_one_drops_the_row() -> None:
    memory = pour(memory_of(4), 4, 4)
    memory.write(torch.tensor([-1, 3, -1]), numbered(10, 3))
    assert held(memory) == [0, 1, 2, 11]
    memory.write(torch.tensor([-1, -1]), numbered(20, 2))
    assert held(memory) == [0, 1, 2, 11]


def test_a_slot_beyond_the_capacity_is_refused() -> None:
    with pytest.raises(IndexError, match="slot 4 in a memory of 4"):
        memory_of(4).write(torch.tensor([4]), numbered(0, 1))


def test_image_label_and_further_fields_move_together() -> None:
    memory = memory_of(5, seed=3)
    memory.add_field("logits", (2,), torch.float32)
    for start in range(0, 200, 10):
        batch = numbered(start, 10)
        batch.keep(logits=torch.stack([batch.y.float(), -batch.y.float()], 1))
        memory.write(memory.reservoir(10), batch)
        read = memory.read(torch.arange(len(memory)))
        assert read.x.flatten().tolist() == read.y.tolist()
        assert read.extra["logits"].tolist() == [[y, -y] for y in read.y.tolist()]
    assert max(held(memory)) >= 10  # something was replaced


def test_read_returns_the_slots_it_was_asked_for_in_order() -> None:
    read = pour(memory_of(6), 6, 6).read(torch.tensor([4, 0, 4]))
    assert read.y.tolist() == read.x.flatten().tolist() == [4, 0, 4]
    assert read.slots is not None
    assert read.slots.tolist() == [4, 0, 4]


def test_what_is_read_is_a_copy() -> None:
    memory = pour(memory_of(3), 3, 3)
    read = memory.read(torch.arange(3))
    read.x.zero_()
    read.y.zero_()
    assert held(memory) == [0, 1, 2]
    assert memory.field("x").flatten().tolist() == [0, 1, 2]


def test_bytes_stay_bytes_and_floats_become_the_nearest_bytes() -> None:
    memory = memory_of(512)
    every = torch.arange(256, dtype=torch.uint8).view(256, 1, 1, 1)
    memory.write(torch.arange(256), Batch(every, torch.zeros(256, dtype=torch.int64)))
    memory.write(torch.arange(256, 512), Batch(every / 255, torch.zeros(256, dtype=torch.int64)))
    read = memory.read(torch.arange(512))
    assert read.x.dtype == torch.uint8
    assert torch.equal(read.x, torch.cat([every, every]))


def test_a_float_memory_keeps_floats_and_decodes_bytes() -> None:
    memory = memory_of(2, dtype=torch.float32)
    memory.write(torch.tensor([0]), Batch(torch.full((1, 1, 1, 1), 0.1234567), torch.tensor([0])))
    memory.write(torch.tensor([1]), Batch(torch.full((1, 1, 1, 1), 51, dtype=torch.uint8), torch.tensor([1])))
    assert memory.read(torch.arange(2)).x.flatten().tolist() == pytest.approx([0.1234567, 0.2], abs=1e-7)


@pytest.mark.parametrize(("n", "filled"), [(3, 20), (4, 16), (5, 20), (19, 20)])  # n * n below, at and above filled
def test_sample_draws_different_slots_and_all_equally_often(n: int, filled: int) -> None:
    memory, draws, generator = pour(memory_of(30), filled, 7), 3000, rng(5)
    counts = torch.zeros(filled, dtype=torch.float64)
    for _ in range(draws):
        slots = memory.sample(n, generator).slots
        assert slots is not None
        assert len(set(slots.tolist())) == n
        counts[slots] += 1
    p = n / filled
    statistic = ((counts - draws * p) ** 2).sum().item() / (draws * p * (1 - p)) * (filled - 1) / filled
    assert chi2.sf(statistic, filled - 1) > 1e-3


@pytest.mark.parametrize(("n", "filled"), [(2, 6), (3, 6)])
def test_sample_draws_every_set_equally_often(n: int, filled: int) -> None:
    memory, draws, generator = pour(memory_of(10), filled, 6), 3000, rng(6)
    counts = dict.fromkeys(itertools.combinations(range(filled), n), 0)
    for _ in range(draws):
        counts[tuple(sorted(memory.sample(n, generator).y.tolist()))] += 1
    expected = draws / len(counts)
    statistic = sum((count - expected) ** 2 / expected for count in counts.values())
    assert chi2.sf(statistic, len(counts) - 1) > 1e-3


def test_sample_gives_all_there_is_when_asked_for_more() -> None:
    memory = pour(memory_of(30), 7, 7)
    assert sorted(memory.sample(10, rng()).y.tolist()) == list(range(7))
    assert sorted(memory.sample(7, rng()).y.tolist()) == list(range(7))
    assert len(memory_of(30).sample(10, rng())) == 0
    assert len(memory_of(0).sample(10, rng())) == 0


class Sizes(TorchFunctionMode):
    """Notes how many elements the largest tensor has that any call of torch returns."""

    largest = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(tensor, Tensor):
                self.largest = max(self.largest, tensor.numel())
        return made


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def huge_memory() -> Memory:
    memory = memory_of(10**7, shape=(1, 8, 8))  # 720 MB if every slot were touched
    one = Batch(torch.zeros(1, 1, 8, 8, dtype=torch.uint8), torch.tensor([3]))
    memory.write(torch.tensor([10**7 - 1]), one)
    assert len(memory) == 10**7
    return memory


def test_the_cost_of_a_sample_does_not_grow_with_the_memory() -> None:
    memory, generator = huge_memory(), rng()
    with Sizes() as sizes:
        for _ in range(100):
            assert len(memory.sample(10, generator)) == 10
    assert sizes.largest == 10 * 64  # the images themselves; not an index of the whole memory


@linux_only
def test_slots_that_nobody_wrote_take_no_resident_memory() -> None:
    memory_of(10).sample(10, rng())
    before = resident_bytes()
    memory = huge_memory()
    memory.sample(10, rng())
    assert resident_bytes() - before < 32 * 2**20


def test_the_instrument_of_the_test_above_sees_a_shuffle_of_the_whole() -> None:
    with Sizes() as sizes:
        torch.randperm(5000, generator=rng())[:10]
    assert sizes.largest == 5000


def test_a_declared_field_that_the_batch_lacks_is_an_error_naming_the_fix() -> None:
    memory = memory_of(3)
    memory.add_field("logits", (2,), torch.float32)
    with pytest.raises(KeyError, match=r"carries no 'logits'.*batch\.keep\(logits=\.\.\.\)"):
        memory.write(memory.reservoir(1), numbered(0, 1))


# Otherwise a slot would be left with the new image and the old logits.
def test_a_refused_write_leaves_every_field_as_it_was() -> None:
    memory = memory_of(3)
    memory.add_field("logits", (1,), torch.float32)
    whole = numbered(0, 3)
    whole.keep(logits=torch.zeros(3, 1))
    memory.write(torch.arange(3), whole)
    with pytest.raises(KeyError):
        memory.write(torch.tensor([1]), numbered(9, 1))
    assert held(memory) == [0, 1, 2]


def test_keep_refuses_another_number_of_rows_and_detaches() -> None:
    batch = numbered(0, 4)
    with pytest.raises(ValueError, match=r"keep\(logits=\.\.\.\): 8 rows for a batch of 4"):
        batch.keep(logits=torch.zeros(8, 2))
    batch.keep(logits=torch.ones(4, 2, requires_grad=True) * 2)
    assert not batch.extra["logits"].requires_grad


def test_rows_of_a_batch_take_slots_and_further_fields_along() -> None:
    batch = Batch(numbered(0, 4).x, torch.arange(4), torch.tensor([7, 8, 9, 5]), {"score": torch.arange(4) * 10})
    part = batch[torch.tensor([3, 1])]
    assert part.x.flatten().tolist() == part.y.tolist() == [3, 1]
    assert part.slots is not None
    assert part.slots.tolist() == [5, 8]
    assert part.extra["score"].tolist() == [30, 10]


@pytest.mark.parametrize("poured", [2, 40])  # before and after it is full
def test_a_loaded_memory_goes_on_as_the_saved_one(poured: int) -> None:
    saved = pour(memory_of(5, seed=1), poured, 4)
    loaded = memory_of(5, seed=99)
    loaded.load_state_dict(copy.deepcopy(saved.state_dict()))
    assert (held(loaded), loaded.seen, len(loaded)) == (held(saved), saved.seen, len(saved))
    for memory in (saved, loaded):
        pour(memory, 60, 7, first=poured)
    assert held(loaded) == held(saved)
    assert loaded.field("x").flatten().tolist() == held(saved)
    assert torch.equal(loaded.rng.get_state(), saved.rng.get_state())
    assert max(held(saved)) >= poured


def test_further_fields_are_loaded_too_and_others_are_refused() -> None:
    saved, loaded = memory_of(3), memory_of(3)
    for memory in (saved, loaded):
        memory.add_field("score", (), torch.float32)
    batch = numbered(0, 2)
    batch.keep(score=torch.tensor([0.5, -0.25]))
    saved.write(saved.reservoir(2), batch)
    loaded.load_state_dict(saved.state_dict())
    assert loaded.read(torch.arange(2)).extra["score"].tolist() == [0.5, -0.25]
    with pytest.raises(ValueError, match="does not fit one of capacity 3"):
        memory_of(3).load_state_dict(saved.state_dict())


@pytest.mark.parametrize("capacity", [3, 20])  # a larger one would come to read slots that nobody wrote
def test_a_memory_refuses_what_one_of_another_capacity_saved(capacity: int) -> None:
    with pytest.raises(ValueError, match=f"memory of capacity 4 .* does not fit one of capacity {capacity}"):
        memory_of(capacity).load_state_dict(pour(memory_of(4), 9, 3).state_dict())


def test_what_is_stored_does_not_depend_on_how_much_is_sampled() -> None:
    quiet, busy, generator = memory_of(5, seed=2), memory_of(5, seed=2), rng(9)
    for start in range(0, 100, 10):
        pour(quiet, 10, 10, first=start)
        for n in (1, 3, 5):
            busy.sample(n, generator)
        pour(busy, 10, 10, first=start)
    assert held(quiet) == held(busy)
    assert max(held(quiet)) >= 10


def test_sampling_draws_from_the_given_generator_alone() -> None:
    memory, everywhere = pour(memory_of(50, seed=2), 50, 10), torch.get_rng_state()
    before = memory.rng.get_state()
    first, again, other = (memory.sample(5, rng(seed)).y.tolist() for seed in (1, 1, 2))
    assert first == again != other
    assert torch.equal(memory.rng.get_state(), before)
    assert torch.equal(torch.get_rng_state(), everywhere)
