"""Runs in this process, one after the other, with all cores as threads."""

from __future__ import annotations

from functools import partial

import torch

from onepass.bench.result import Result
from onepass.bench.runner import run
from onepass.errors import explain
from onepass.executors.protocol import News, Work


def inline(work: Work) -> dict[int, Result | str]:
    outcomes: dict[int, Result | str] = {}
    for index in work.waiting:
        torch.set_num_threads(work.threads)  # a run that was continued may have changed it
        news = News()

        def progress(done: int, total: int, index: int = index, news: News = news) -> None:
            work.report(index, done, total, str(news))
            if work.stop():
                raise KeyboardInterrupt

        try:
            config = work.configs[index]
            with_news = partial(run, callback=news, progress=progress)
            outcomes[index] = with_news(config, work.out, datasets=work.datasets, **work.options)
            work.report(index, 1, 1)  # if another process did it, there were no steps
        except Exception as error:  # whatever happens to one run, the others go on
            outcomes[index] = explain(work.name(index), error)
    return outcomes
