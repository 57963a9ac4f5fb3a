"""Calls from several threads at once, interrupts, forks, and the pool of worker threads."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from decoding_outcomes import batches, outcome, seen
from tables import decode_by_threads

import kbatch
from kbatch.read import workers


def test_concurrent_decodes_return_the_same_records():
    """Several threads decode one input, each with its own worker threads."""
    data = b"".join(batches(np.random.default_rng(7), 600, codecs=("none", "lz4", "zstd", "gzip", "snappy"), size=900))
    uncompressed = b"".join(batches(np.random.default_rng(8), 2000))
    expected = [outcome(kbatch.decode, data), outcome(kbatch.decode, uncompressed)]
    wrong = []

    def work(threads):
        for _ in range(10):
            if [outcome(decode_by_threads, part, threads=threads) for part in (data, uncompressed)] != expected:
                wrong.append(threads)

    callers = [threading.Thread(target=work, args=(1 + i,)) for i in range(6)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


def run_together(*works, rounds=1):
    """Run each of `works` in its own thread, `rounds` times, starting each round together; raise the first error."""
    start = threading.Barrier(len(works))
    errors = []

    def run(work):
        try:
            for i in range(rounds):
                start.wait(60)
                work(i)
        except BaseException as error:
            errors.append(error)
            start.abort()

    callers = [threading.Thread(target=run, args=(work,)) for work in works]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    if errors:
        raise next((error for error in errors if not isinstance(error, threading.BrokenBarrierError)), errors[0])


def test_several_threads_may_read_one_table():
    """Batches and headers are built on first use, in the thread that uses them first (COL-R4)."""
    whole = kbatch.decode(b"".join(batches(np.random.default_rng(13), 40)))
    first = whole[7:].batches["first_record"].tolist()
    headers = whole[7:].headers.tolist()
    parts = [whole[7:] for _ in range(300)]

    def selected(i):
        assert parts[i].select(["offset", "headers"]).batches["first_record"].tolist() == first

    def accessed(i):
        assert parts[i].batches["first_record"].tolist() == first
        assert parts[i].headers.tolist() == headers

    run_together(selected, accessed, selected, accessed, rounds=len(parts))


class Watched(kbatch.RecordTable):
    """Reads its `batches` right after access number `step` to an attribute that they are derived from."""

    __slots__ = ()
    step = -1

    def __getattribute__(self, name):
        found = super().__getattribute__(name)
        if name in ("_batches", "_derived"):
            Watched.step -= 1
            if Watched.step == -1:
                self.batches  # noqa: B018
        return found


@pytest.mark.parametrize("step", range(2))
def test_select_is_consistent_while_another_thread_builds_the_batches(step):
    """Another thread may build the batches between any two steps of `select`."""
    whole = kbatch.decode(b"".join(batches(np.random.default_rng(13), 40)))
    part = whole[7:]
    part.__class__ = Watched
    Watched.step = step
    chosen = part.select(["offset"])
    assert Watched.step < 0
    assert chosen.batches["first_record"].tolist() == whole[7:].batches["first_record"].tolist()


def test_concurrent_calls_of_all_kinds_do_not_interfere(tmp_path):
    """Independent calls share one log, one input and the pool's memory, and each returns its own result."""
    rng = np.random.default_rng(14)
    data = b"".join(batches(rng, 300, codecs=("none", "lz4", "zstd", "gzip", "snappy"), size=900))
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(data)
    log = kbatch.Log(path)
    values = [rng.bytes(int(rng.integers(0, 300))) for _ in range(2000)]
    table = kbatch.decode(data)
    times = np.arange(len(values))
    encoded = {
        codec: kbatch.encode(values, timestamps=times, codec=codec)
        for codec in ("none", "gzip", "snappy", "lz4", "zstd")
    }
    recompressed = kbatch.recompress(data, "lz4")
    expected = seen(table)

    def decodes(i):
        assert seen(decode_by_threads(data, threads=1 + i % 3)) == expected

    def reads(_):
        assert sum(len(part) for part in log.tables(max_bytes=1 << 15)) == len(table)
        assert log.end_offset == int(table.records["offset"][-1]) + 1

    def encodes(_):
        for codec, one in encoded.items():
            assert kbatch.encode(values, timestamps=times, codec=codec) == one
            assert kbatch.decode(one).values() == values

    def rewrites(_):
        assert kbatch.recompress(data, "lz4") == recompressed

    def lists(_):
        assert table.values() == [table.value(row) for row in range(len(table))]

    run_together(decodes, decodes, reads, encodes, rewrites, lists, rounds=6)


def test_concurrent_arrow_conversions_are_equal():
    pytest.importorskip("pyarrow")
    table = kbatch.decode(b"".join(batches(np.random.default_rng(15), 300, size=300)))
    expected = table.to_arrow()

    def converts(_):
        assert table.to_arrow().equals(expected)

    run_together(converts, converts, converts, rounds=20)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs POSIX signals")
@pytest.mark.parametrize("threads", [1, 3])
def test_ctrl_c_interrupts_a_decode(threads):
    """Ctrl-C ends the call promptly, and later calls work as before."""
    data = b"".join(batches(np.random.default_rng(9), 40, codecs=("gzip",), size=20_000)) * 60
    whole = len(kbatch.decode(data, threads=threads).records)

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    interrupted = 0
    try:
        for _ in range(5):
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            with contextlib.suppress(KeyboardInterrupt):
                kbatch.decode(data, threads=threads)
                interrupted -= 1
            interrupted += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted == 5
    assert len(kbatch.decode(data, threads=threads).records) == whole


def test_worker_threads_are_reused_by_the_next_call():
    """The pool keeps at most the threads that one call can use, and idle threads use no processor time."""
    data = b"".join(batches(np.random.default_rng(10), 200, size=3000))
    expected = outcome(kbatch.decode, data)
    workers._before_fork()
    for _ in range(50):
        assert outcome(decode_by_threads, data, threads=5) == expected
    kept = list(workers._pool.threads)
    assert 1 <= len(kept) <= workers._pool.size == max(4, os.cpu_count())
    assert outcome(decode_by_threads, data, threads=2) == expected
    assert workers._pool.threads[: len(kept)] == kept
    time.sleep(0.1)
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.1
    # A call that asks for more threads gets a new pool, and the threads of the old one end.
    assert outcome(decode_by_threads, data, threads=40) == expected
    for thread in kept:
        thread.join(10)
        assert not thread.is_alive()


FORKS = """
import os, sys, threading
import kbatch
from kbatch.read import workers
data = b"".join(kbatch.encode([bytes([i]) * 3000] * 9, codec=codec) for i in range(200) for codec in ("none", "lz4"))
expected = kbatch.decode(data).records.tobytes()
def decodes(threads=3):
    return kbatch.decode(data, threads=threads).records.tobytes() == expected
def decodes_until_over():
    while not over:
        assert decodes()
over = []
other = threading.Thread(target=decodes_until_over)
other.start()
for _ in range(10):
    assert decodes()
    child = os.fork()
    if not child:
        assert workers._pool is None
        os._exit(0 if decodes() and decodes(5) else 1)
    assert os.waitpid(child, 0)[1] == 0
over.append(True)
other.join()
assert decodes()
# The process exits while worker threads are idle.
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs POSIX fork")
def test_a_forked_child_starts_new_worker_threads_and_the_process_exits_cleanly():
    """A child starts its own threads, even if others decode during the fork; exit prints nothing and does not hang."""
    ran = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKS], capture_output=True, text=True, timeout=120
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


FORK_COUNTS = """
import os
counts = []
# Hooks registered last are called first.
os.register_at_fork(before=lambda: counts.append(sum(thread.is_alive() for thread in kept)))
import kbatch
from kbatch.read import workers
data = b"".join(kbatch.encode([os.urandom(3000)] * 9, codec="lz4") for i in range(200))
for _ in range(40):
    kbatch.decode(data, threads=3)
    kept = list(workers._pool.threads)
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
print(len(counts), sum(count > 0 for count in counts))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs POSIX fork")
def test_idle_worker_threads_end_before_a_fork():
    """Python 3.12 and later warn if other threads exist; the caller did not start the idle worker threads."""
    ran = subprocess.run([sys.executable, "-c", FORK_COUNTS], capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stderr) == (0, "")
    forks, others = map(int, ran.stdout.split())
    assert forks == 40
    # A fork waits for the threads only for a limited time, and the machine may be busy.
    assert others <= 5


def test_decode_works_if_threads_cannot_be_started(monkeypatch):
    data = b"".join(batches(np.random.default_rng(11), 100))

    def refuse(*_):
        raise RuntimeError("can't start new thread")

    workers._before_fork()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert outcome(decode_by_threads, data, threads=4) == outcome(kbatch.decode, data)


class _Interrupted(BaseException):
    pass


@pytest.mark.parametrize("error", [_Interrupted, MemoryError])
@pytest.mark.parametrize("place", ["_executor", "submit", "own_codecs"])
def test_an_error_that_ends_the_call_ends_its_threads(monkeypatch, error, place):
    """Ctrl-C or a MemoryError may occur at any step between the start of the first thread and the decoding."""
    data = bytearray(b"".join(batches(np.random.default_rng(13), 40, codecs=("gzip",), size=20_000)) * 20)
    whole = len(kbatch.decode(data).records)
    executor = workers._executor(2)
    submit = executor.submit
    calls = itertools.count()

    def fail(*args):
        if place != "submit" or next(calls) == 1:
            raise error
        return submit(*args)

    monkeypatch.setattr(executor if place == "submit" else workers, place, fail)
    with contextlib.suppress(error):
        kbatch.decode(data, threads=3)
        pytest.fail("the error was not raised")
    # No thread holds the input, or writes to memory that may have been allocated again since.
    data.append(0)
    data.pop()
    monkeypatch.undo()
    assert len(kbatch.decode(data, threads=3).records) == whole
