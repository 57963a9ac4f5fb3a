"""Read topics from a broker with kbatch, the clients for Python, Java and Go, and a raw probe, on the same records.

``python -m bench.live [--mb 500] [--rounds 3] [--check] [--json FILE]`` starts a broker, writes topics to it, and lets
every client of `bench.consumers` read them into each form of result, each client in a fresh process, one after the
other. Times are wall-clock time from creating the client to the last record, with the garbage collector off; CPU time
is that of the client, with all its threads; the broker shares the cores. The time for a topic of a few records is
subtracted, because some clients need half a second to start. Clients that would take minutes read a topic of the same
batches that is smaller, which the output says. Results are checked: the number of records, and on a small topic the
sums of all columns. ``--quick`` runs everything once with few records, to check the results only.
"""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from bench.__main__ import machine
from bench.broker_topics import Topic, delete_topics, write_topic
from bench.consumers import CLOSE, CONSUMERS, COUNT, FIFTIETH, FORMS, PARTS, TABLES, TENTH, WHOLE, Consumer
from bench.corpora import BASE_TIMESTAMP, corpus
from bench.foreign import CannotRun, Running, command_of
from bench.live_floors import GOAL, MEMORY, live_floors
from bench.load import OtherWork
from bench.memory import status
from bench.report import LIVE, cpu_table, floors_markdown, live_table, memory_table
from bench.steps import add_step_arguments, run_fresh

__all__ = ["main"]

NAMES = ("small", "small-lz4", "small-zstd", "medium", "medium-16k-lz4", "medium-16k-zstd")
PARTITIONS = (1, 4)
# What --quick reads, unless topics are chosen.
QUICK_TOPICS = (("small", 4), ("medium-16k-zstd", 1))
# The topics on which the memory of kbatch is measured, and the values of max_bytes.
MEMORY_TOPICS = (("small", 4), ("medium-16k-lz4", 4))
MEMORY_BYTES = (8 << 20, 32 << 20, 128 << 20)
# The topic whose time is subtracted, and its size in bytes.
TINY, TINY_BYTES = "tiny", 300_000
STEP_SECONDS = 300


class Used(NamedTuple):
    """What a read has used: wall-clock seconds, CPU seconds of all threads, and page faults."""

    seconds: float
    cpu: float
    faults: int

    @classmethod
    def until_now(cls) -> Used:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return cls(time.perf_counter(), usage.ru_utime + usage.ru_stime, usage.ru_minflt)

    def since(self, before: Used) -> Used:
        return Used(*(now - then for now, then in zip(self, before, strict=True)))


def sums_of(frame: Any) -> list[int]:
    """Sum any frame of the four columns: records, offsets, timestamps, bytes of keys, bytes of values."""
    import pyarrow as pa
    import pyarrow.compute as pc

    table = frame
    if not isinstance(frame, pa.Table):
        table = frame.to_arrow() if hasattr(frame, "to_arrow") else pa.Table.from_pandas(frame, preserve_index=False)
    lengths = [pc.sum(pc.binary_length(table[name].cast(pa.large_binary()))).as_py() or 0 for name in ("key", "value")]
    offsets = pc.sum(table["offset"]).as_py()
    # The sum of more than five million current timestamps exceeds int64.
    timestamps = table["timestamp"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
    since = pc.sum(pc.subtract(timestamps, BASE_TIMESTAMP)).as_py() or 0
    return [len(table), offsets, since + len(table) * BASE_TIMESTAMP, *lengths]


def read(consumer: Consumer, form: str, topic: Topic) -> tuple[int, Used]:
    """Let a client read a topic; return the number of records and what it has used."""
    import pyarrow as pa

    counts: list[int] = []
    gc.collect()
    # Memory that an earlier read has left would save page faults.
    pa.default_memory_pool().release_unused()
    gc.disable()
    before = Used.until_now()
    if form == COUNT:
        assert consumer.count is not None
        counts.append(consumer.count(topic))
    elif form == TABLES:
        assert consumer.tables is not None
        consumer.tables(topic, lambda table: counts.append(table.num_rows))
    else:
        frame = consumer.frames[form](topic)
        counts.append(len(frame))
    used = Used.until_now().since(before)
    gc.enable()
    while CLOSE:
        CLOSE.pop()()
    return sum(counts), used


def check_sums(consumer: Consumer, form: str, topic: Topic) -> None:
    """Compare the result of a client with the sums of a topic."""
    import pyarrow as pa

    if form == COUNT:
        return
    if form == TABLES:
        assert consumer.tables is not None
        tables: list[Any] = []
        consumer.tables(topic, tables.append)
        frame = pa.concat_tables(tables)
    else:
        frame = consumer.frames[form](topic)
    if (sums := sums_of(frame)) != list(topic.sums):
        raise AssertionError(f"{consumer.name}, {form}: the sums are {sums}, expected {list(topic.sums)}")


def run_step(order: dict[str, Any]) -> dict[str, Any]:
    """Let one client read a topic into each form, or measure the memory of a read.

    The tiny topic is read into each form first, which also warms up, and then into one form to be timed.
    """
    topics = {part: Topic(**facts) for part, facts in order["topics"].items()}
    if "max_bytes" in order:
        return peak_memory(topics, order["max_bytes"])
    consumer = next(one for one in CONSUMERS if one.name == order["name"])
    for form in order["forms"]:
        check_sums(consumer, form, topics[TINY])
    starts = (read(consumer, order["forms"][0], topics[TINY])[1] for _ in range(2))
    start = min(starts, key=lambda used: used.seconds)
    found = {}
    for form in order["forms"]:
        topic = topics[consumer.part(form, order["corpus"])]
        count, used = read(consumer, form, topic)
        found[form] = net(consumer, form, topic, topics[TINY], count, used, start)
    return found


def net(
    consumer: Consumer, form: str, topic: Topic, tiny: Topic, count: int, used: Used, start: Used
) -> dict[str, float]:
    """Check the number of records, and return what their read has used without the start of the client."""
    if count != topic.records:
        raise AssertionError(f"{consumer.name}, {form}: {count} records, expected {topic.records}")
    return {**used.since(start)._asdict(), "start": start.seconds, "records": count - tiny.records}


def run_program(order: dict[str, Any]) -> dict[str, Any] | str:
    """Let a program in another language count a topic, after a smaller one, whose records it sums."""
    consumer = next(one for one in CONSUMERS if one.name == order["name"])
    topics = {part: Topic(**facts) for part, facts in order["topics"].items()}
    assert consumer.program is not None
    reads = ((TENTH, "sums"), (TINY, "count"), (WHOLE, "count"))
    answers = []
    try:
        with Running(command_of(consumer.program), topics[WHOLE].bootstrap) as running:
            for part, kind in reads:
                topic = topics[part]
                answers.append(running.answer(f"{topic.name} {topic.partitions} {topic.records} {kind}"))
    except CannotRun as error:
        lines = str(error).splitlines() or ["ended without a message"]
        return next((line for line in lines if "Exception" in line), lines[-1])
    if (sums := answers[0]["sums"]) != list(topics[TENTH].sums):
        return f"the sums are {sums}, expected {list(topics[TENTH].sums)}"
    start, used = (Used(one["seconds"], one["cpu"], one.get("faults", 0)) for one in answers[1:])
    return {COUNT: net(consumer, COUNT, topics[WHOLE], topics[TINY], answers[2]["sums"][0], used, start)}


def peak_memory(topics: dict[str, Topic], max_bytes: int) -> dict[str, int]:
    """Iterate over a topic; return how much the resident memory has grown at most."""
    import kbatch

    def iterate(topic: Topic) -> int:
        tables = kbatch.consume(topic.name, bootstrap_servers=topic.bootstrap, max_bytes=max_bytes)
        return sum(len(table) for table in tables)

    iterate(topics[TINY])
    gc.collect()
    before = status("VmRSS")
    # Reset the peak; it would otherwise be that of a parent process.
    Path("/proc/self/clear_refs").write_text("5")
    count = iterate(topics[WHOLE])
    if count != topics[WHOLE].records:
        raise AssertionError(f"{count} records, expected {topics[WHOLE].records}")
    return {"max_bytes": max_bytes, "before": before, "growth": status("VmHWM") - before}


def step(order: dict[str, Any], seconds: int = STEP_SECONDS) -> dict[str, Any] | str:
    """Run a step in a separate process; return its measurements, or the reason why it failed."""
    try:
        result, errors = run_fresh("bench.live", order, seconds=seconds, stderr=subprocess.PIPE)
    except subprocess.TimeoutExpired:
        return f"not finished within {seconds} s"
    return result or ((errors or "").strip().splitlines() or ["failed without a message"])[-1]


class Run:
    """The measurements of a run, and where they are noted.

    Parameters
    ----------
    options : Namespace
        The arguments of the command.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.size, self.rounds = (500_000, 1) if options.quick else (int(options.mb * 1e6), options.rounds)
        self.consumers = [one for one in CONSUMERS if (one.name in options.client if options.client else one.is_chosen)]
        self.forms = options.form or [*FORMS, *([] if options.quick else [MEMORY])]
        chosen = [(name, count) for name in options.corpus or NAMES for count in options.partitions or PARTITIONS]
        quick = options.quick and not options.corpus and not options.partitions
        self.topics = list(QUICK_TOPICS) if quick else chosen
        self.began = time.monotonic()
        self.runs: dict[str, dict[str, list[dict[str, Any]]]] = {}
        self.memory: dict[str, list[dict[str, int]]] = {}
        self.absent: dict[str, dict[str, str]] = {}
        self.failures: dict[str, dict[str, str]] = {}
        self.facts: dict[str, dict[str, Any]] = {}

    def measure(self, scratch: Path) -> None:
        """Start a broker, and let all clients read topic after topic."""
        from bench.spark import start_broker

        with start_broker(scratch / "broker") as broker:
            for name, partitions in self.topics:
                key = f"{name}, {partitions} partition{'s' * (partitions > 1)}"
                topics = self._written(broker.bootstrap, name, partitions, key)
                self._read(name, key, topics)
                if MEMORY in self.forms and (name, partitions) in MEMORY_TOPICS and self._has(LIVE):
                    self._measure_memory(key, topics)
                delete_topics(broker.bootstrap, [topic["name"] for topic in topics.values()])
                corpus.cache_clear()

    def _has(self, name: str) -> bool:
        return any(one.name == name for one in self.consumers)

    def _written(self, bootstrap: str, name: str, partitions: int, key: str) -> dict[str, dict[str, Any]]:
        """Write the parts of a topic; return the arguments of `Topic` by part."""
        prefix = f"{name}-{partitions}"
        what = corpus(name, self.size // PARTS[TENTH])
        fewer = {FIFTIETH: self.size // PARTS[FIFTIETH], TINY: min(TINY_BYTES, self.size // PARTS[FIFTIETH] // 2)}
        topics = {
            WHOLE: write_topic(bootstrap, f"{prefix}-whole", what, partitions, PARTS[TENTH]),
            TENTH: write_topic(bootstrap, f"{prefix}-tenth", what, partitions),
            **{
                part: write_topic(bootstrap, f"{prefix}-{part}", corpus(name, size), partitions)
                for part, size in fewer.items()
            },
        }
        self.facts[key] = {
            "corpus": name,
            "partitions": partitions,
            "records": {part: topic.records for part, topic in topics.items()},
            "stored_bytes": PARTS[TENTH] * len(what.data),
            "payload_bytes": PARTS[TENTH] * what.payload_bytes,
        }
        self._note(f"{key}: written")
        return {part: asdict(topic) for part, topic in topics.items()}

    def _read(self, name: str, key: str, topics: dict[str, dict[str, Any]]) -> None:
        """Let all clients read a topic in turns."""
        runs, absent = self.runs.setdefault(key, {}), self.absent.setdefault(key, {})
        failures = self.failures.setdefault(key, {})
        for turn in range(self.rounds):
            for consumer in self.consumers:
                forms = [form for form in consumer.forms if form in self.forms]
                if not turn and (reason := consumer.missing(name)) is not None:
                    absent[consumer.name] = reason
                ends = consumer.turns is not None and turn >= consumer.turns
                if not forms or ends or consumer.name in {**absent, **failures}:
                    continue
                order = {"name": consumer.name, "corpus": name, "topics": topics, "forms": forms}
                limit = consumer.seconds or STEP_SECONDS
                result = run_program(order) if consumer.program else step(order, limit)
                if not isinstance(result, str):
                    runs.setdefault(consumer.name, []).append(result)
                elif consumer.seconds and result.startswith("not finished"):
                    absent[consumer.name] = result
                else:
                    failures[consumer.name] = result
                self._note(f"{key}, round {turn + 1}: {consumer.name}: {summary_of(result)}")

    def _measure_memory(self, key: str, topics: dict[str, dict[str, Any]]) -> None:
        for max_bytes in MEMORY_BYTES:
            result = step({"topics": topics, "max_bytes": max_bytes})
            if isinstance(result, str):
                self.failures[key][f"{LIVE}, {MEMORY}"] = result
                return
            self.memory.setdefault(key, []).append(result)
            self._note(f"{key}, memory: {result}")

    def _note(self, text: str) -> None:
        print(f"{time.monotonic() - self.began:7.1f} s  {text}", file=sys.stderr, flush=True)

    def figures(self) -> dict[str, Any]:
        """Return what was measured, as the document that ``--json`` writes."""
        return {
            "rounds": self.rounds,
            "size": self.size,
            "seconds": time.monotonic() - self.began,
            "versions": dict(versions(self.consumers)),
            "topics": self.facts,
            "parts": {
                key: {who: {form: self._part(who, form, key) for form in done[0]} for who, done in clients.items()}
                for key, clients in self.runs.items()
            },
            "records_per_second": self._medians(lambda one: one["records"] / one["seconds"]),
            "cpu_seconds_per_million": self._medians(lambda one: 1e6 * one["cpu"] / one["records"]),
            "page_faults_per_million": self._medians(lambda one: 1e6 * one["faults"] / one["records"]),
            "memory": self.memory,
            "forms": self.forms,
            "clients": [one.name for one in self.consumers],
            "absent": self.absent,
            "failures": self.failures,
            "runs": self.runs,
        }

    def _part(self, name: str, form: str, key: str) -> str:
        consumer = next(one for one in self.consumers if one.name == name)
        return consumer.part(form, self.facts[key]["corpus"])

    def _medians(self, figure: Any) -> dict[str, dict[str, dict[str, float]]]:
        """Return the median of a figure over the rounds, by topic, client and form."""
        return {
            key: {
                who: {form: statistics.median(figure(one[form]) for one in done) for form in done[0]}
                for who, done in clients.items()
            }
            for key, clients in self.runs.items()
        }


def summary_of(result: dict[str, Any] | str) -> str:
    if isinstance(result, str):
        return result
    rates = (f"{form} {one['records'] / one['seconds'] / 1e6:.2f}" for form, one in result.items())
    return f"million records/s: {', '.join(rates)}"


def versions(consumers: list[Consumer]) -> Iterator[tuple[str, str]]:
    for name in ("pyarrow", "pandas", "polars", *(one.name for one in consumers)):
        try:
            yield name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue


def reasons(found: dict[str, dict[str, str]]) -> list[str]:
    return list(dict.fromkeys(f"- {who}: {why}" for some in found.values() for who, why in some.items()))


def smaller_topics(parts: dict[str, dict[str, dict[str, str]]], sizes: dict[str, str]) -> Iterator[str]:
    """Yield a line for each client and size of a topic, with the forms for which it was read."""
    forms: dict[tuple[str, str], Counter[str]] = {}
    clients: Counter[str] = Counter()
    for by_client in parts.values():
        clients.update(list(by_client))
        for who, by_form in by_client.items():
            for form, part in by_form.items():
                if part != WHOLE:
                    forms.setdefault((who, part), Counter())[form] += 1
    for (who, part), counts in forms.items():
        texts = (form if count == clients[who] else f"{form} of compressed topics" for form, count in counts.items())
        yield f"- {who}: {sizes[part]} ({', '.join(texts)})"


def report_of(figures: dict[str, Any]) -> str:
    """Return the tables of a run."""
    sizes = {part: f"{figures['size'] / divisor / 1e6:g} MB" for part, divisor in PARTS.items()}
    others = figures["other_work"]
    lines = [
        f"{figures['machine']}. {', '.join(' '.join(one) for one in figures['versions'].items())}. "
        + ("" if others is None else f"Other processes used {others:.2f} processors."),
        "",
        f"Topics of {sizes[WHOLE]}, uncompressed, {figures['rounds']} rounds, {figures['seconds'] / 60:.1f} minutes. "
        "Smaller topics for:",
    ]
    lines += smaller_topics(figures["parts"], sizes)
    tables = [
        live_table(figures["records_per_second"]),
        cpu_table(figures["cpu_seconds_per_million"], figures["page_faults_per_million"]),
    ]
    tables += [memory_table(figures["memory"])] if figures["memory"] else []
    return "\n\n".join(["\n".join(lines), *tables])


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.live", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--mb", type=float, default=500, help="size of a topic in 10^6 bytes, uncompressed (default: 500)"
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="default: 3; all clients but kbatch and the probe run one"
    )
    parser.add_argument(
        "--corpus", action="append", choices=NAMES, help=f"may be repeated; default: {', '.join(NAMES)}"
    )
    parser.add_argument("--partitions", action="append", type=int, help="may be repeated; default: 1 and 4")
    parser.add_argument(
        "--client", action="append", choices=[one.name for one in CONSUMERS], metavar="NAME",
        help=f"may be repeated: {', '.join(one.name for one in CONSUMERS)}; "
        f"default: all but {' and '.join(one.name for one in CONSUMERS if not one.is_chosen)}",
    )  # fmt: skip
    parser.add_argument(
        "--form", action="append", choices=[*FORMS, MEMORY], metavar="FORM",
        help=f"form of the result; may be repeated: {', '.join([*FORMS, MEMORY])}; default: all",
    )  # fmt: skip
    parser.add_argument(
        "--check", type=float, nargs="?", const=1.0, metavar="PART",
        help="exit with 1 if a floor is missed; with PART, if less than this part of it is reached",
    )  # fmt: skip
    parser.add_argument(
        "--from", dest="read", type=Path, metavar="FILE", help="run nothing; print the figures of an earlier --json"
    )
    add_step_arguments(parser)
    return parser.parse_args(arguments)


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Run all clients; return the figures."""
    others = OtherWork()
    run = Run(options)
    with tempfile.TemporaryDirectory(dir=options.dir, prefix="kbatch-live-bench-") as scratch:
        run.measure(Path(scratch))
    # The broker has ended, so it is not among others.
    return run.figures() | {"machine": machine(), "other_work": others.processors()}


def main(arguments: list[str] | None = None) -> int:
    """Run all clients and print tables; the exit status is 1 if a client failed, or a floor is missed and checked."""
    options = options_of(arguments)
    if options.step:
        print(json.dumps(run_step(json.load(sys.stdin))))
        return 0
    figures = json.loads(options.read.read_text()) if options.read else measured(options)
    found = live_floors(figures, options.check or 1.0)
    if options.json:
        options.json.write_text(json.dumps(figures | {"floors": [one._asdict() for one in found]}, indent=1))
    if options.quick:
        rates = figures["records_per_second"]
        lines = ["results correct:", *(f"{topic}: {', '.join(clients)}" for topic, clients in rates.items())]
    else:
        lines = [report_of(figures), "", floors_markdown(found), ""]
    failed = reasons(figures["failures"])
    checked = [] if options.quick or options.check is None else [one for one in found if one.needs != GOAL]
    missed = [one for one in checked if not one.met]
    lines += [*reasons(figures["absent"]), *failed]
    lines += [
        f"floor missed: {one.text}: {'not run' if one.measured is None else f'{one.measured:.3g}'}, "
        f"expected {one.side} {one.bound:g}"
        for one in missed
    ]
    print("\n".join(lines))
    return int(bool(failed or missed))


if __name__ == "__main__":
    sys.exit(main())
