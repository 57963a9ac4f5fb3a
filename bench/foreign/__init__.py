"""Decoders in other languages, each a separate program that decodes a file repeatedly.

``python -m bench.foreign FILE`` builds the programs whose toolchains are installed, runs them on a file of batches, and
prints their results.

Every program verifies all CRCs and sums each record's offset, timestamp, key length and value length, in the fastest
way that was found for its library, which the comment at its top describes. A program is started with the name of a
file, reads it, and decodes it once for each line of standard input, so that contestants can take turns round by round
while just-in-time compilers stay warm. Seconds are the CPU time of all threads of the program; for Java only of the
decoding thread. Java's compiler and garbage collector are thus not counted, which favours Java slightly: no object
survives a collection here, so collections take almost no time.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from bench.corpora import BASE_TIMESTAMP, Corpus, quick

__all__ = ["CONSUMER_PROGRAMS", "PROGRAMS", "CannotRun", "Program", "Round", "Running", "Totals", "command_of"]

HERE = Path(__file__).parent
BUILD = HERE / "build"
BUILD_SECONDS = 1800

# A small young generation and a collector without threads: the fastest of the options that were tried (serial and
# parallel collectors, up to half a gigabyte, with and without touching the pages first).
JVM = ["-XX:+UseSerialGC", "-Xms256m", "-Xmn16m"]


class CannotRun(Exception):
    """A program cannot be built here, or cannot read a file; the message gives the reason."""


class Totals(NamedTuple):
    """The sums of a decode, modulo 2^64; a null key or value counts as empty."""

    records: int
    offsets: int
    timestamps: int
    key_bytes: int
    value_bytes: int

    @classmethod
    def of(cls, *sums: int) -> Totals:
        return cls(*(value % 2**64 for value in sums))

    @classmethod
    def of_corpus(cls, corpus: Corpus) -> Totals:
        """Return the sums that a decode of a corpus must return."""
        sums = corpus.sums
        timestamps = sums.timestamps + sums.records * BASE_TIMESTAMP
        return cls.of(sums.records, sums.offsets, timestamps, sums.key_bytes, sums.value_bytes)


class Round(NamedTuple):
    """One decode: CPU seconds, wall-clock seconds, and the sums."""

    seconds: float
    wall: float
    totals: Totals


class Running:
    """A running program; a context manager that ends it."""

    def __init__(self, command: Sequence[str], argument: str | Path) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the program ends
        self._process = subprocess.Popen(
            [*command, os.fspath(argument)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self.version = "?"

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def answer(self, line: str) -> dict[str, Any]:
        """Send a line to the program, and return its answer; raises `CannotRun`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            answer = ""
        else:
            answer = self._process.stdout.readline()
        if not answer:
            self._process.wait()
            self._errors.seek(0)
            raise CannotRun(self._errors.read().decode(errors="replace").strip())
        found: dict[str, Any] = json.loads(answer)
        self.version = found["version"]
        return found

    def round(self) -> Round:
        """Let the program decode the file once more."""
        found = self.answer("")
        sums = (found[key] for key in ("records", "offsets", "timestamps", "keyBytes", "valueBytes"))
        return Round(found["seconds"], found["wall"], Totals.of(*sums))

    def warm_up(self, seconds: float) -> Round:
        """Decode for some seconds, at least once, and return the last round."""
        until = time.perf_counter() + seconds
        while True:
            last = self.round()
            if time.perf_counter() >= until:
                return last


@dataclass(frozen=True)
class Program:
    """A decoder: a library in another language, and how to build and run it."""

    name: str
    needs: tuple[str, ...]
    build: Callable[[], list[str]]
    warm_up_seconds: float = 0.3
    # Parts of the names of corpora that the library does not read.
    unread: tuple[str, ...] = ()

    def missing(self) -> str | None:
        """Return the reason why the program cannot be built here, or None if it can."""
        absent = [tool for tool in self.needs if shutil.which(tool) is None]
        return f"{self.name} needs {' and '.join(absent)} on the PATH" if absent else None

    def reads(self, corpus: str) -> bool:
        """Return whether the library reads a corpus."""
        return not any(part in corpus for part in self.unread)

    def start(self, path: Path) -> Running:
        """Build the program if necessary, and start it on a file; raises `CannotRun`."""
        return Running(command_of(self), path)

    def time(self, path: Path, rounds: int) -> list[Round]:
        """Warm up on a file, and return the given number of rounds."""
        with self.start(path) as running:
            running.warm_up(self.warm_up_seconds)
            return [running.round() for _ in range(rounds)]


@cache
def command_of(program: Program) -> list[str]:
    reason = program.missing()
    if reason is not None:
        raise CannotRun(reason)
    BUILD.mkdir(exist_ok=True)
    return program.build()


def run(command: Sequence[str], directory: Path, **variables: str) -> None:
    done = subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BUILD_SECONDS,
        check=False,
    )
    if done.returncode:
        raise CannotRun(f"{' '.join(command)} failed:\n{done.stdout[-4000:]}")


def build_java(name: str) -> list[str]:
    """Compile ``java/NAME.java``; return the command that runs it."""
    from tests.broker.server import Unavailable, find_jars

    try:
        jars = find_jars(HERE / "java" / "pom.xml")
    except Unavailable as error:
        raise CannotRun(str(error)) from error
    classes = BUILD / "java"
    run(["javac", "-cp", f"{jars}/*", "-d", os.fspath(classes), f"{name}.java"], HERE / "java")
    return ["-cp", f"{classes}{os.pathsep}{jars}/*", name]


def build_go(package: str, name: str) -> list[str]:
    """Build a package of ``go``; return the command that runs it."""
    program = os.fspath(BUILD / name)
    run(["go", "build", "-o", program, package], HERE / "go")
    return [program]


@cache
def build_rust(program: str) -> list[str]:
    # Quick mode checks results only, and optimizing takes most of the time of a build.
    profile, options = ("debug", []) if quick() else ("release", ["--release"])
    target = BUILD / "rust"
    command = ["cargo", "build", *options, "--ignore-rust-version", "--quiet"]
    run(command, HERE / "rust", CARGO_TARGET_DIR=os.fspath(target))
    return [os.fspath(target / profile / program)]


PROGRAMS = [
    # The just-in-time compiler has compiled everything after about two seconds.
    Program("Kafka (Java)", ("java", "javac"), lambda: ["java", *JVM, *build_java("Decode")], warm_up_seconds=3),
    Program("franz-go (Go)", ("go",), lambda: build_go(".", "franz-go")),
    Program("kafka-protocol (Rust)", ("cargo",), lambda: build_rust("kafka-protocol"), unread=("-v1",)),
    Program("krabka-protocol (Rust)", ("cargo",), lambda: build_rust("krabka-protocol"), unread=("-v1",)),
]

# Heaps and collectors were tried for the consumer too. The parallel collector is the fastest with its default heap.
CONSUMER_JVM = ["-XX:+UseParallelGC", "-Xms1g", "-Xmx1g"]
# They read topics of a broker; `bench.consumers` sends them orders.
CONSUMER_PROGRAMS = {
    "Kafka (Java)": Program("Kafka (Java)", ("java", "javac"), lambda: ["java", *CONSUMER_JVM, *build_java("Consume")]),
    "franz-go (Go)": Program("franz-go (Go)", ("go",), lambda: build_go("./consume", "franz-go-consumer")),
}
