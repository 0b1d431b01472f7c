"""A whole call: record what tests reach, plant what was drawn, keep every verdict."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any, TypeVar

from mutants.crew import Worker
from mutants.judge import Judge
from mutants.marks import mark_copy
from mutants.plant import copied
from mutants.project import Project
from mutants.reach import Reach
from mutants.results import SURVIVED, Results, Verdict
from mutants.sample import sample
from mutants.sites import Site, sites
from mutants.stored import EQUIVALENT, SURVIVORS, add_survivors, load

Task = TypeVar("Task")


@dataclass
class Session:
    """What is asked for."""

    project: Project
    seed: int = 0
    count: int = 300
    jobs: int = 1
    seconds: float = 20.0
    minutes: float | None = None
    only: tuple[str, ...] = ()  # groups of packages; all of them if none is named

    def __post_init__(self) -> None:
        self.lock, self.began = Lock(), time.monotonic()
        self.reach = Reach(self.project)
        self.results = Results(self.project.cache / "results.jsonl", self.project.state)
        self.catchers = self.results.catchers()

    @cached_property
    def every(self) -> dict[str, Site]:
        """All mutants there could be, but for those that change nothing."""
        source, equivalent = self.project.source, load(self.project, EQUIVALENT)
        candidates = (
            site
            for file in self.project.files()
            for site in sites(file, (source / file).read_bytes())
        )
        return {site.key: site for site in candidates if site.key not in equivalent}

    def drawn(self) -> list[Site]:
        """A fair sample, which the tests were not written for."""
        mine = [site for site in self.every.values() if self._is_wanted(site)]
        return sample(mine, self.project.stratum, self.seed, self.count)

    def chosen(self) -> list[Site]:
        """The draw, then what survived an earlier one."""
        earlier = [self.every[key] for key in load(self.project, SURVIVORS) if key in self.every]
        again = filter(self._is_wanted, earlier)
        return list({site.key: site for site in (*self.drawn(), *again)}.values())

    def _is_wanted(self, site: Site) -> bool:
        return not self.only or self.project.stratum(site.file) in self.only

    def is_complete(self) -> bool:
        """Whether there is a verdict on every bug of the draw."""
        return {site.key for site in self.drawn()} <= self.results.latest().keys()

    def run(self) -> dict[str, Verdict]:
        """Plant what has no verdict yet; then all verdicts, by key."""
        settled = self.results.settled(self.seconds)
        left = [site for site in self.chosen() if site.key not in settled]
        if left:
            self._record()
            with ExitStack() as stack:
                copies = [copied(self.project, f"copy-{i}") for i in range(self.jobs)]
                workers = self._workers(stack, copies)
                judges = [Judge(self.project, self.reach, w, self.seconds) for w in workers]
                self._share(judges, left, self._plant, "planted")
        return self.verdicts()

    def verdicts(self) -> dict[str, Verdict]:
        """Verdicts on what is chosen, as far as there are any; survivors are written down.

        "drawn" tells the sample from the survivors of earlier ones.
        """
        latest, drawn = self.results.latest(), {site.key for site in self.drawn()}
        judged = [site for site in self.chosen() if site.key in latest]
        survivors = (site for site in judged if latest[site.key]["verdict"] in SURVIVED)
        add_survivors(self.project, survivors, self.every)
        return {site.key: {**latest[site.key], "drawn": site.key in drawn} for site in judged}

    def _record(self) -> None:
        """Note what tests reach, where something has changed since it was noted."""
        missing = self.reach.missing()
        if missing:
            copies = [copied(self.project, f"marked-{i}") for i in range(self.jobs)]
            files = self.project.files()
            for copy in copies:
                places = mark_copy(copy, self.project.package, files)
            with ExitStack() as stack:
                workers = self._workers(stack, copies)
                self.reach.record_imports(workers[0], places)
                record = partial(self.reach.record, places=places)
                self._share(workers, missing, record, "recorded")

    def _workers(self, stack: ExitStack, copies: list[Path]) -> list[Worker]:
        """One for each copy, with every test collected."""
        workers = [Worker(copy, self.project.test_files()) for copy in copies]
        with ThreadPoolExecutor(self.jobs) as pool:
            list(pool.map(stack.enter_context, workers))
        for worker in workers:
            if not worker.tests:
                raise RuntimeError(f"no tests were collected; see {worker.copy / 'worker.log'}")
        return workers

    def _share(
        self, hands: list[Any], tasks: list[Task], do: Callable[[Task, Any], None], done: str
    ) -> None:
        """Every hand takes the next task until none is left, or the time is over."""
        queue: SimpleQueue[Task] = SimpleQueue()
        for task in tasks:
            queue.put(task)

        def work(hand: Any) -> None:
            while self.minutes is None or time.monotonic() - self.began < 60 * self.minutes:
                try:
                    do(queue.get_nowait(), hand)
                except Empty:
                    return
                with self.lock:
                    count = len(tasks) - queue.qsize()
                    print(f"\r{done} {count} of {len(tasks)}", end="", flush=True)

        with ThreadPoolExecutor(len(hands)) as pool:
            list(pool.map(work, hands))
        print()

    def _plant(self, site: Site, judge: Judge) -> None:
        self.results.add(site, self.seconds, judge.verdict(site, self.catchers.get(site.key, "")))
