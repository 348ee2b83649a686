"""Child seeds never change, never meet, and stay out of each other's way."""

from __future__ import annotations

import torch

from onepass.seeds import child_seed, generator


def test_child_seeds_are_the_first_63_bits_of_sha256() -> None:
    """Two values worked out with sha256sum: were they to change, every stored number would belong to another stream."""
    assert child_seed(0, "stream") == 0xE287A7A5C00122D7 >> 1
    assert child_seed(7, "stream", "order", 3) == 0x881FEB5BC9439DB7 >> 1


def test_child_seeds_of_different_seeds_and_names_differ() -> None:
    places = [
        (),
        ("init",),
        ("stream",),
        ("stream", "classes"),
        ("stream", "order", 0),
        ("stream", "order", 1),
        ("memory",),
    ]
    seeds = [child_seed(seed, *names) for seed in range(50) for names in places]
    assert len(set(seeds)) == len(seeds)
    assert child_seed(1, 11) != child_seed(11, 1)


def test_child_seeds_fit_any_generator() -> None:
    seeds = [child_seed(seed, "x") for seed in range(500)]
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert max(seeds) > 2**62  # no bit is wasted
    for seed in (min(seeds), max(seeds)):
        torch.Generator().manual_seed(seed)


def test_generators_of_one_name_draw_alike_and_others_differently() -> None:
    draws = [torch.rand(5, generator=generator(*names)).tolist() for names in ((3, "a"), (3, "a"), (3, "b"), (4, "a"))]
    assert draws[0] == draws[1]
    assert draws[0] != draws[2]
    assert draws[0] != draws[3]


def test_drawing_from_one_generator_leaves_the_others_and_the_global_one_alone() -> None:
    everywhere = torch.get_rng_state()
    first, second = generator(0, "a"), generator(0, "b")
    torch.rand(1000, generator=first)
    assert torch.rand(3, generator=second).tolist() == torch.rand(3, generator=generator(0, "b")).tolist()
    assert torch.equal(torch.get_rng_state(), everywhere)


def test_generators_live_on_the_cpu() -> None:
    assert generator(0, "a").device.type == "cpu"
