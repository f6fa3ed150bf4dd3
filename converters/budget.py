"""How many bytes may be in memory at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any


class Stopped(Exception):
    """The work was called off; what was begun is incomplete."""


class Budget:
    """Bytes in flight. A request larger than the whole budget is served alone."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._changed = threading.Condition()

    def acquire(self, size: int, stop: threading.Event) -> None:
        """Wait until ``size`` more bytes fit.

        Raises:
          Stopped: ``stop`` was set meanwhile.
        """
        with self._changed:
            while self._used and self._used + size > self._limit:
                if stop.is_set():
                    raise Stopped
                self._changed.wait(timeout=0.2)
            self._used += size

    def release(self, size: int) -> None:
        with self._changed:
            self._used -= size
            self._changed.notify_all()


def run_within(
    budget: Budget,
    jobs: Iterable[tuple[int, Callable[[], Any]]],
    workers: int,
    stop: threading.Event,
) -> Iterator[Any]:
    """Results of jobs run in threads, started in order, as they complete.

    A job is its size in bytes and its work. The first error stops the others and is raised here;
    so is Stopped once ``stop`` is set.
    """

    def work(size: int, job: Callable[[], Any]) -> Any:
        try:
            if stop.is_set():
                raise Stopped
            return job()
        finally:
            budget.release(size)

    pending: set[Future[Any]] = set()
    with ThreadPoolExecutor(workers, thread_name_prefix="convert") as pool:
        try:
            for size, job in jobs:
                while len(pending) >= workers:
                    done, pending = wait(pending, return_when=FIRST_COMPLETED)
                    yield from (future.result() for future in done)
                budget.acquire(size, stop)
                pending.add(pool.submit(work, size, job))
            while pending:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)
        except BaseException:
            stop.set()
            raise
