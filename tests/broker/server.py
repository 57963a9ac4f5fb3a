"""One Kafka broker (KRaft) as a child process on loopback: jars from Maven, storage, start and stop."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

__all__ = ["Broker", "Unavailable", "ending_with_thread", "free_ports", "running"]

POM = Path(__file__).with_name("pom.xml")
MIN_JAVA = 17
START_SECONDS = 120
STOP_SECONDS = 60
STARTED = "Kafka Server started"

# A base64 UUID. Every directory is a separate cluster.
CLUSTER_ID = "a2JhdGNoLXRlc3RzLWJrcg"

# Few threads and short intervals: tests must not wait, and logs must be cleaned within seconds.
SETTINGS = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",
    "num.network.threads": "1",
    "num.io.threads": "2",
    "background.threads": "2",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "2",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    # The timestamps of the tests' records are in 2023.
    "log.retention.ms": "-1",
    # The cleaner requires more than 1 MiB.
    "log.cleaner.dedupe.buffer.size": str(4 << 20),
    "log.cleaner.backoff.ms": "200",
    "log.initial.task.delay.ms": "200",
    "log.retention.check.interval.ms": "500",
    "log.segment.delete.delay.ms": "500",
    "log.flush.offset.checkpoint.interval.ms": "500",
    "log.flush.start.offset.checkpoint.interval.ms": "500",
    "log.index.interval.bytes": "1024",
}

JVM = [
    "-Xms64m",
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.log.kafka.server=info",
]


# A broker whose jars have `LocalTieredStorage`.
TIERED_POM = POM.with_name("tiered.xml")


def tiered_settings(directory: Path) -> dict[str, str]:
    """Return the settings of a broker with tiered storage below a directory, in ``kafka-tiered-storage``."""
    return SETTINGS | {
        "remote.log.storage.system.enable": "true",
        "remote.log.storage.manager.class.name": "org.apache.kafka.server.log.remote.storage.LocalTieredStorage",
        "rsm.config.dir": os.fspath(directory),
        "remote.log.metadata.manager.listener.name": "PLAINTEXT",
        "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
        "rlmm.config.remote.log.metadata.topic.num.partitions": "1",
        "remote.log.manager.task.interval.ms": "500",
    }


class Unavailable(Exception):
    """No broker can run on this machine; the message names the missing program and how to get it."""


def find_java() -> str:
    """Return the Java of ``JAVA_HOME``, or else of the ``PATH``."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None:
        raise Unavailable(f"no Java: a broker needs Java {MIN_JAVA} or newer on the PATH or in JAVA_HOME")
    try:
        done = subprocess.run([java, "-version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise Unavailable(f"{java} can't be run: {error}") from error
    found = re.search(rb'version "(\d+)', done.stderr + done.stdout)
    if found is None or int(found[1]) < MIN_JAVA:
        raise Unavailable(f"{java} is too old: a broker needs Java {MIN_JAVA} or newer")
    return java


def find_jars(pom: Path = POM, cache: Path | None = None) -> Path:
    """Return the directory of the jars that a pom.xml names, fetching them if the cache lacks them.

    The cache is ``KBATCH_BROKER_CACHE``, else ``kbatch`` in the user's cache directory, unless another one is given.
    Its path depends on the content of pom.xml.
    """
    if cache is None:
        base = os.environ.get("KBATCH_BROKER_CACHE")
        cache = Path(base) if base else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kbatch"
    jars = cache / f"broker-{hashlib.sha256(pom.read_bytes()).hexdigest()[:12]}"
    if jars.is_dir():
        return jars
    maven = shutil.which("mvn")
    if maven is None:
        raise Unavailable(f"no jars of Kafka in {jars}, and no Maven (mvn) on the PATH to fetch them")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        # The rename is atomic, also if two runs fetch at the same time.
        with tempfile.TemporaryDirectory(dir=cache, prefix="fetching-") as fetched:
            command = [maven, "-B", "-ntp", "-q", "-f", os.fspath(pom), "dependency:copy-dependencies"]
            done = subprocess.run(
                [*command, "-DincludeScope=runtime", f"-DoutputDirectory={fetched}/jars"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=900,
                check=False,
            )
            if done.returncode:
                raise Unavailable(f"Maven could not fetch Kafka's jars:\n{done.stdout[-2000:]}")
            try:
                os.rename(f"{fetched}/jars", jars)
            except OSError:
                if not jars.is_dir():
                    raise
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"Kafka's jars could not be fetched to {jars}: {error}") from error
    return jars


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def ending_with_thread(command: list[str]) -> list[str]:
    """Return a command whose process ends with this thread, even if this process is killed."""
    setpriv = shutil.which("setpriv")
    return command if setpriv is None else [setpriv, "--pdeathsig", "KILL", *command]


class Broker:
    """A broker that stores all its files below one directory; it can be restarted.

    Attributes
    ----------
    bootstrap : str
        ``host:port`` for ``bootstrap.servers``; the same after a restart.
    addresses : dict of str to str
        ``host:port`` of each listener: "PLAINTEXT", and those of `listeners`, which have a security protocol each.
    log_dir : Path
        The directory of its topic-partitions (``log.dirs``).

    Parameters
    ----------
    advertised : mapping of str to str, optional
        Addresses that clients get in place of those of some listeners, such as that of a proxy.
    node : int
    controllers : mapping of int to int, optional
        By node, the ports of the controllers of its cluster, of which this broker is one. Default is this one alone.
    """

    def __init__(
        self,
        directory: Path,
        *,
        jvm: Sequence[str] = JVM,
        settings: Mapping[str, str] = SETTINGS,
        pom: Path = POM,
        listeners: Mapping[str, str] | None = None,
        format_options: Sequence[str] = (),
        advertised: Mapping[str, str] | None = None,
        node: int = 1,
        controllers: Mapping[int, int] | None = None,
    ) -> None:
        self._jvm = jvm
        self._java = find_java()
        self._jars = find_jars(pom)
        self.directory = directory
        self.log_dir = directory / "logs"
        self._properties = directory / "server.properties"
        self._output = directory / "broker.out"
        self._process: subprocess.Popen[bytes] | None = None
        self.is_paused = False
        directory.mkdir(parents=True, exist_ok=True)
        self._format_options = format_options
        protocols = {"PLAINTEXT": "PLAINTEXT", **(listeners or {})}
        controllers = dict(zip([node], free_ports(1), strict=True)) if controllers is None else controllers
        ports = free_ports(len(protocols))
        self.addresses = {name: f"127.0.0.1:{port}" for name, port in zip(protocols, ports, strict=True)}
        self.bootstrap = self.addresses["PLAINTEXT"]
        listening = [f"{name}://{address}" for name, address in self.addresses.items()]
        known = [f"{name}://{address}" for name, address in {**self.addresses, **(advertised or {})}.items()]
        protocol_map = ",".join(
            f"{name}:{protocol}" for name, protocol in {**protocols, "CONTROLLER": "PLAINTEXT"}.items()
        )
        all_settings = dict(settings) | {
            "node.id": str(node),
            "listeners": ",".join([*listening, f"CONTROLLER://127.0.0.1:{controllers[node]}"]),
            "advertised.listeners": ",".join(known),
            "listener.security.protocol.map": protocol_map,
            "controller.quorum.voters": ",".join(f"{each}@127.0.0.1:{port}" for each, port in controllers.items()),
            "log.dirs": os.fspath(self.log_dir),
        }
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in all_settings.items()))

    def __enter__(self) -> Broker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def run_class(self, name: str, *arguments: str, timeout: float = 120) -> str:
        """Run a Kafka tool, such as ``org.apache.kafka.tools.DumpLogSegments``, and return its output."""
        done = subprocess.run(
            self._command(name, *arguments),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{name} failed with status {done.returncode}:\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def _command(self, name: str, *arguments: str) -> list[str]:
        return [self._java, *self._jvm, "-cp", f"{self._jars}/*", name, *arguments]

    def start(self) -> None:
        """Start, and return when the broker serves clients; an empty directory is formatted first."""
        self.launch()
        self.wait_until_started()

    def launch(self) -> None:
        """Start, without waiting until the broker serves clients."""
        if self._process is not None:
            raise RuntimeError("the broker is already running")
        self.format()
        command = ending_with_thread(self._command("kafka.Kafka", os.fspath(self._properties)))
        with open(self._output, "wb") as output:
            # In its own process group, so that Ctrl-C reaches only this process.
            self._process = subprocess.Popen(
                command, cwd=self.directory, stdin=subprocess.DEVNULL, stdout=output, stderr=output, process_group=0
            )

    def format(self) -> None:
        """Format the directory, unless it is formatted."""
        if not (self.log_dir / "meta.properties").exists():
            arguments = ["format", "-t", CLUSTER_ID, "-c", os.fspath(self._properties), *self._format_options]
            self.run_class("kafka.tools.StorageTool", *arguments)

    def wait_until_started(self) -> None:
        """Wait until the broker serves clients; it is killed if it does not."""
        try:
            self._wait_until_started(self._process)
        except BaseException:
            self.kill()
            raise

    def _wait_until_started(self, process: subprocess.Popen[bytes] | None) -> None:
        assert process is not None
        deadline = time.monotonic() + START_SECONDS
        while STARTED not in self.output():
            if process.poll() is not None:
                raise RuntimeError(f"the broker ended with status {process.returncode}:\n{self.output()[-4000:]}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"the broker is not ready after {START_SECONDS} s:\n{self.output()[-4000:]}")
            time.sleep(0.05)

    def pause(self) -> None:
        """Stop the process, which keeps its connections, until `go_on`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        self.is_paused = True

    def go_on(self) -> None:
        """Continue after `pause`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
        self.is_paused = False

    @property
    def runs(self) -> bool:
        return self._process is not None

    def output(self) -> str:
        """Return the output of the broker since its last start."""
        return self._output.read_text(errors="replace") if self._output.exists() else ""

    def stop(self) -> None:
        """Shut down cleanly: the broker flushes logs, and writes snapshots and the clean-shutdown file."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise RuntimeError(f"the broker did not stop in {STOP_SECONDS} s:\n{self.output()[-4000:]}") from None
        self._process = None

    def kill(self) -> None:
        """End the broker at once, also a paused one."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process, self.is_paused = None, False


@contextmanager
def running(directory: Path | None = None) -> Iterator[Broker]:
    """Run a broker in `directory`, or in a temporary directory that is removed afterwards."""
    if directory is not None:
        with Broker(directory) as broker:
            yield broker
        return
    with tempfile.TemporaryDirectory(prefix="kbatch-broker-") as temporary, Broker(Path(temporary)) as broker:
        yield broker
