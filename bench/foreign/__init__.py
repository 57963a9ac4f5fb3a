"""Decoders of other languages, each a program of its own that decodes a file as often as it is told to.

``python -m bench.foreign FILE`` builds what can be built here, lets all of them decode a file of batches, and prints
what they say.

Every program sums each record's offset, timestamp, key length and value length, and checks every CRC: the fastest way
to do so that was found in its library, as the comment at its top says. It is started with the name of a file, reads it,
and decodes it once for each line that comes in, so that what is compared can take turns round by round, with
just-in-time compilers warm. Seconds are CPU time of all of the program's threads; of Java's only the decoding one, so
that neither compiler nor collector counts, in Java's favour: nothing survives a collection here, and it takes next to
no time.
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

from bench.corpora import BASE_TIMESTAMP, Corpus

__all__ = ["PROGRAMS", "CannotRun", "Program", "Round", "Running", "Totals"]

HERE = Path(__file__).parent
BUILD = HERE / "build"
BUILD_SECONDS = 1800

# A young generation that stays near the cache, and a collector without threads: the fastest of what was tried
# (serial and parallel, up to half a gigabyte, its pages touched before or not).
JVM = ["-XX:+UseSerialGC", "-Xms256m", "-Xmn16m"]


class CannotRun(Exception):
    """A program can't be had here, or can't read a file; the message says why."""


class Totals(NamedTuple):
    """What a decode adds up to, modulo 2^64; a null key or value counts as empty."""

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
        """Return what a decode of a corpus has to add up to."""
        sums = corpus.sums
        timestamps = sums.timestamps + sums.records * BASE_TIMESTAMP
        return cls.of(sums.records, sums.offsets, timestamps, sums.key_bytes, sums.value_bytes)


class Round(NamedTuple):
    """One decode: CPU seconds, seconds by the clock, and the sums."""

    seconds: float
    wall: float
    totals: Totals


class Running:
    """A started program; a context manager that ends it."""

    def __init__(self, command: Sequence[str], path: Path) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the program ends
        self._process = subprocess.Popen(
            [*command, os.fspath(path)],
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

    def round(self) -> Round:
        """Let it decode the file once more."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            answer = ""
        else:
            answer = self._process.stdout.readline()
        if not answer:
            self._process.wait()
            self._errors.seek(0)
            raise CannotRun(self._errors.read().decode(errors="replace").strip())
        said: dict[str, Any] = json.loads(answer)
        self.version = said["version"]
        sums = (said[key] for key in ("records", "offsets", "timestamps", "keyBytes", "valueBytes"))
        return Round(said["seconds"], said["wall"], Totals.of(*sums))

    def warm_up(self, seconds: float) -> Round:
        """Decode for some seconds, at least once, and return the last round."""
        until = time.perf_counter() + seconds
        while True:
            last = self.round()
            if time.perf_counter() >= until:
                return last


@dataclass(frozen=True)
class Program:
    """One decoder: a library of another language, and how it gets to run here."""

    name: str
    needs: tuple[str, ...]
    build: Callable[[], list[str]]
    warm_up_seconds: float = 0.3
    # Corpora that its library does not read, by a part of their names.
    unread: tuple[str, ...] = ()

    def missing(self) -> str | None:
        """Return why it can't be built here, None if it can."""
        absent = [tool for tool in self.needs if shutil.which(tool) is None]
        return f"{self.name} needs {' and '.join(absent)} on the PATH" if absent else None

    def reads(self, corpus: str) -> bool:
        """Return whether its library reads a corpus."""
        return not any(part in corpus for part in self.unread)

    def start(self, path: Path) -> Running:
        """Build if that wasn't done, and start on a file; raises `CannotRun`."""
        return Running(command_of(self), path)

    def time(self, path: Path, rounds: int) -> list[Round]:
        """Return some rounds on a file, after warming up."""
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


def build_java() -> list[str]:
    from tests.broker.server import Unavailable, find_jars

    try:
        jars = find_jars(HERE / "java" / "pom.xml")
    except Unavailable as error:
        raise CannotRun(str(error)) from error
    classes = BUILD / "java"
    run(["javac", "-cp", f"{jars}/*", "-d", os.fspath(classes), "Decode.java"], HERE / "java")
    return ["java", *JVM, "-cp", f"{classes}{os.pathsep}{jars}/*", "Decode"]


def build_go() -> list[str]:
    program = os.fspath(BUILD / "franz-go")
    run(["go", "build", "-o", program, "."], HERE / "go")
    return [program]


@cache
def build_rust(program: str) -> list[str]:
    target = BUILD / "rust"
    command = ["cargo", "build", "--release", "--ignore-rust-version", "--quiet"]
    run(command, HERE / "rust", CARGO_TARGET_DIR=os.fspath(target))
    return [os.fspath(target / "release" / program)]


PROGRAMS = [
    # The just-in-time compiler is done with all of it after about two seconds.
    Program("Kafka (Java)", ("java", "javac"), build_java, warm_up_seconds=3),
    Program("franz-go (Go)", ("go",), build_go),
    Program("kafka-protocol (Rust)", ("cargo",), lambda: build_rust("kafka-protocol"), unread=("-v1",)),
    Program("krabka-protocol (Rust)", ("cargo",), lambda: build_rust("krabka-protocol"), unread=("-v1",)),
]
