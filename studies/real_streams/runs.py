"""The queue of long runs, one command a line, most needed first.

Every run keeps an average of its weights (ER-FSL+ its own), so that each row can be read
by last weights and by average.
"""

from __future__ import annotations

from collections.abc import Iterator

SEEDS = (0, 1, 2)
BOTH = ("cifar100", "cifar10")
ROWS = ("er", "er-fsl", "er-fsl+", "pcr", "ss-il", "er-ace", "scr", "iid++", "finetune")
STATISTICS = ("slda", "ncm", "randumb")  # no network, no memory: minutes each
CLAIM = (10, 11, 12, 13, 14)  # seeds on which nothing was chosen
UNSEEN = (20, 21, 22, 23, 24)  # for sizes with pairs, which came after test figures of the seeds above were known
PAIRED = tuple(f"patch-lda --filters {n} --threshold 0.5 --pairs {pairs}" for n, pairs in ((200, 64), (300, 96)))
FILTERS = (100, 200, 400, 1000)  # 400 is the default
CHANGES = (  # of Patch-LDA, on a fifth of a stream; all but the first from before parts overlapped
    "",
    "--reach 0",
    "--reach 0 --mirror false",
    "--reach 0 --root false",
    "--reach 0 --mirror false --root false",
    "--reach 0 --threshold 0.6",
    "--reach 0 --threshold 1",
    "--reach 0 --size 5",
    "--reach 0 --size 8",
    "--reach 0 --pool 3",
)
LOWERED = ("er", "er-fsl", "pcr", "scr")  # also run in bf16
BESIDE = ("er", "pcr", "er-fsl+")  # methods that get a Patch-LDA beside them
ABLATIONS = (  # columns 2 to 7 of table 3; column 1 is ER-FSL itself
    "--new-weight 0",
    "--replay-weight 0",
    "--test-in task",
    "--learn-in first",
    "--learn-in used --replay-in task",
    "--new-weight 1 --replay-weight 1",
)
SIZES = {"10": 3, "51": 16, "100": 31, "200": 62}  # the paper's size: the same share of d / T with 160 features
GAMMAS = ("0.1", "0.3", "0.5", "0.9")


def run(method: str, seed: int, extra: str = "", stream: str = "cifar100", net: str = "slim-resnet18") -> str:
    name = method.partition(" ")[0]
    fixed = name in ("patch-lda", "slda", "ncm", "randumb")
    memory = "" if fixed or name in ("finetune", "iid", "iid++") else " --memory 1000"
    average = "" if fixed or name == "er-fsl+" else " --average 0.98"
    return f"{method} --stream {stream} --net {net} --seed {seed}{memory}{average} {extra}".rstrip()


def sized(filters: int) -> str:
    return "patch-lda" if filters == 400 else f"patch-lda --filters {filters}"


def lowered(stream: str) -> Iterator[str]:
    yield from (run(method, seed, "--precision bf16", stream=stream) for seed in SEEDS for method in LOWERED)


def queue() -> Iterator[str]:
    yield from (run(method, seed) for seed in SEEDS for method in ROWS)
    yield from lowered("cifar100")  # says whether the paper's network may run in bf16, at two thirds of the time
    for seed in SEEDS:
        yield from (run("er-fsl", seed, change) for change in ABLATIONS)
    yield from (run(method, 0, net="resnet18") for method in ("er-fsl", "er", "pcr"))
    yield from (run(size, seed, stream=stream) for size in PAIRED for seed in UNSEEN for stream in BOTH)
    part = "--fraction 0.2 --test-fraction 0.2"  # images of 84x84 take long to predict too
    yield from (
        run(method, seed, part, stream="mini-imagenet")
        for seed in SEEDS
        for method in ("patch-lda", "er", "pcr", "er-fsl+", "slda")
    )
    fifth = "--fraction 0.2 --validate"
    for seed in SEEDS:
        yield from (run(sized(size), seed, fifth, stream=stream) for size in (400, 1000) for stream in BOTH)
        for method in BESIDE:
            yield from (run(method, seed, f"--expert true {fifth}", stream=stream) for stream in BOTH)
    for seed in SEEDS:
        yield from (run("er-fsl", seed, f"--subspace {size}") for size in SIZES.values() if size != 16)  # d / T
        yield from (run("er-fsl", seed, f"--gamma {gamma}") for gamma in GAMMAS if gamma != "0.3")
    for size in FILTERS:
        yield from (run(sized(size), seed, "--validate", stream=stream) for seed in SEEDS for stream in BOTH)
    for stream in BOTH:
        yield from (run(method, seed, stream=stream) for seed in SEEDS for method in STATISTICS)
    yield from (run(method, seed, stream="cifar10") for seed in SEEDS for method in ROWS)
    yield from lowered("cifar10")
    # What was run before and stands in results.
    yield from (run("patch-lda", seed, stream=stream) for seed in CLAIM for stream in BOTH)
    yield from (run(sized(1000), seed, stream=stream) for stream in BOTH for seed in CLAIM)
    yield from (run(sized(1500), seed) for seed in (*CLAIM, 15, 16))  # picked knowing test figures of 400 and 1000
    for change in CHANGES:
        extra = f"{change} {fifth}".strip()
        yield from (run(sized(200), seed, extra, stream=stream) for seed in SEEDS for stream in BOTH)
    for share in (0.002, 0.02):  # of 5,000 images a class: 10 and 100
        for method in ("patch-lda", "slda", "ncm", "randumb", "er", "pcr", "er-fsl", "er-fsl+"):
            yield from (run(method, seed, f"--fraction {share}", "cifar10") for seed in SEEDS)


if __name__ == "__main__":
    print("\n".join(queue()))
