"""Who runs rows and chapters: processes of this machine, or a Dask cluster's."""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributed import Client
    from distributed import Future as DaskFuture

SCHEDULER = "SCHEDULER"
"""Environment variable: the address of the cluster's scheduler, as ``tcp://host:8786``."""
PATIENCE = 10
"""Seconds until a scheduler that does not answer is given up."""


class ClusterError(Exception):
    """There is no such cluster, or its workers have another checkout; says what to do."""


@contextmanager
def workers(of_this_machine: Callable[[], Executor]) -> Iterator[Executor]:
    """What runs jobs: those of the cluster that ``SCHEDULER`` names, or else of this machine.

    What has not begun when the block is left is cancelled.

    Raises:
        ClusterError: if no scheduler answers there, or Dask is not installed.
    """
    if not (address := os.environ.get(SCHEDULER)):
        pool = of_this_machine()
        try:
            yield pool
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        return
    try:
        from distributed import Client
    except ImportError:
        raise ClusterError("a scheduler needs Dask: make .venv/installed-tests") from None
    try:
        client = Client(address, timeout=PATIENCE)
    except (OSError, ValueError) as error:
        raise ClusterError(f"no scheduler answers at {address}: {error}") from None
    with client:
        print(f"{_count(client)} workers; dashboard {client.dashboard_link}", flush=True)
        ended = threading.Event()
        watch = threading.Thread(target=_say_if_none, args=(client, address, ended), daemon=True)
        watch.start()
        try:
            yield _Cluster(client)
        finally:  # the client's end cancels its jobs
            ended.set()
            watch.join(PATIENCE)


class _Cluster(Executor):
    """Dask's own executor calls a result an error if its worker leaves when it has been fetched."""

    def __init__(self, client: "Client") -> None:
        assert client.loop is not None  # of a client that has connected
        self._client, self._loop = client, client.loop.asyncio_loop  # type: ignore[attr-defined]

    def submit(self, function: Callable[..., Any], /, *args: Any, **keywords: Any) -> Future[Any]:
        # The same job may be asked for again.
        future = self._client.submit(function, *args, pure=False, **keywords)
        return asyncio.run_coroutine_threadsafe(_result(future), self._loop)


async def _result(future: "DaskFuture[Any]") -> Any:
    try:
        return await future
    except CancelledError:  # by a scheduler that is gone; the job's future shall say so
        raise asyncio.CancelledError from None


def _count(client: "Client") -> int:
    return len(client.scheduler_info(n_workers=-1)["workers"])


def _say_if_none(client: "Client", address: str, ended: threading.Event) -> None:
    """Until the end: whenever there is no worker left, what is waited for."""
    waits = False
    with suppress(OSError):  # the scheduler is gone, which the jobs say
        while not ended.wait(1):
            waited, waits = waits, _count(client) == 0
            if waits and not waited:
                print(f"waiting for a worker: make worker {SCHEDULER}={address}", flush=True)


def processes() -> ProcessPoolExecutor:
    """As many as ``WORKERS`` says, or as there are cores."""
    return ProcessPoolExecutor(
        int(os.environ.get("WORKERS", os.cpu_count() or 1)),
        mp_context=get_context("spawn"),
        initializer=leave_with_parent,
        initargs=(os.getpid(),),
    )


def leave_with_parent(parent: int) -> None:
    """A worker whose parent was killed, even while the worker started, would wait for ever."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
