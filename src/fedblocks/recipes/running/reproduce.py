"""Carry out a recipe with worker processes, as far as the data are there and the time allows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from fedblocks.core.errors import Interrupted
from fedblocks.recipes.presence import missing
from fedblocks.recipes.running.process_pool import ProcessPool
from fedblocks.recipes.running.reproduction import Reproduction
from fedblocks.recipes.running.results import WARNING
from fedblocks.recipes.running.task import CellTask
from fedblocks.recipes.running.worker import Answer

LEAST = 1.0  # seconds that must be left to start another run
LANES = 16  # runs in one batch: more would make a GPU no faster, and cells end later


def carry_out(asked: Reproduction, tell: Callable[[str], None] = lambda text: None) -> bool:
    """Do what is due, as far as the data are there and the time allows; whether
    everything was done.
    """
    cells = [cell for cell in asked.cells if not missing(cell)]
    ready = [task for cell in cells for task in asked.due(cell)]
    for text in asked.results.drop_stale():
        tell(text)
    for cell in cells:  # that are done, since a call without --tidy or one that was stopped
        asked.tidy_up(cell)
    running: dict[Future[list[Answer]], list[CellTask]] = {}
    crew = ProcessPool(asked.jobs)
    with ThreadPoolExecutor(asked.jobs) as pool:
        try:
            while ready or running:
                _start(asked, crew, pool, ready, running)
                if not running:
                    break
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    tasks = running.pop(done)
                    _record(asked, tasks, done.result(), ready, tell)
                    _continue(asked, tasks, done.result(), ready, running)
        except KeyboardInterrupt as error:
            fix = "the same command goes on from there"
            raise Interrupted("stopped; every whole round is stored", fix) from error
        finally:
            crew.close()
    return not asked.killed and not any(asked.due(cell) for cell in cells)


def _record(
    asked: Reproduction,
    tasks: Sequence[CellTask],
    answers: Sequence[Answer],
    ready: list[CellTask],
    tell: Callable[[str], None],
) -> None:
    """Store what a worker said; runs whose worker was killed for the first time come next."""
    pairs = list(zip(tasks, answers, strict=True))
    again = {task.folder for task, answer in pairs if asked.may_retry(task, answer)}
    for task, answer in pairs:
        if task.folder in again:
            ready.insert(0, task)
            tell(f"{_line(task, answer)}; once more")
        else:
            asked.record(task, answer)
            tell(_line(task, answer))


def _start(
    asked: Reproduction,
    crew: ProcessPool,
    pool: ThreadPoolExecutor,
    ready: list[CellTask],
    running: dict[Future[list[Answer]], list[CellTask]],
) -> None:
    """Give free workers something to do; tasks that share a run wait for each other."""
    while len(running) < asked.jobs:
        busy = {task.folder for tasks in running.values() for task in tasks}
        left = asked.seconds_left()
        free = [task for task in ready if task.folder not in busy]
        if not free or (left is not None and left < LEAST):
            if not running:
                ready.clear()
            return
        tasks = _company(asked, free) if asked.lanes else free[:1]
        for task in tasks:
            ready.remove(task)
        batch = {"jobs": [task.job() for task in tasks], "seconds": left, "lanes": asked.lanes}
        running[pool.submit(crew.work, batch)] = tasks


def _company(asked: Reproduction, free: Sequence[CellTask]) -> list[CellTask]:
    """The first task and others that may be lanes beside it, of whatever cells; a run whose worker
    was killed is alone, so that it takes no others with it.
    """
    if free[0].folder in asked.retried:
        return [task for task in free if task.folder == free[0].folder]
    alike = [task for task in free if task.kind == free[0].kind]
    folders = dict.fromkeys(task.folder for task in alike if task.folder not in asked.retried)
    chosen = set(list(folders)[:LANES])
    return [task for task in free if task.folder in chosen]


def _continue(
    asked: Reproduction,
    tasks: Sequence[CellTask],
    answers: Sequence[Answer],
    ready: list[CellTask],
    running: Mapping[Future[list[Answer]], Sequence[CellTask]],
) -> None:
    """When all tasks of a cell are done, the next rung or its seeds come next."""
    ready[:] = [task for task in ready if task.cell.key not in asked.failed | asked.killed]
    pairs = zip(tasks, answers, strict=True)
    stopped = {task.cell.key for task, answer in pairs if "numbers" not in answer}
    going_on = [task for others in running.values() for task in others]
    busy = {task.cell.key for task in (*ready, *going_on)}
    cells = {task.cell.key: task.cell for task in tasks if task.cell.key not in stopped | busy}
    ready[:0] = [due for cell in cells.values() for due in asked.due(cell)]
    for cell in cells.values():
        asked.tidy_up(cell)


def _line(task: CellTask, answer: Answer) -> str:
    if "error" in answer:
        return f"{task}: failed: {answer['error']}"
    if "killed" in answer:
        return f"{task}: killed (signal {answer['killed']})"
    if "stopped" in answer:
        return f"{task}: stopped at the budget"
    where = " on validation data" if task.part == "validation" else ""
    warning = f"; warning: {answer[WARNING]}" if WARNING in answer else ""
    return f"{task}: {answer['numbers']['value']:.2f}{where} ({answer['seconds']:.0f} s){warning}"
