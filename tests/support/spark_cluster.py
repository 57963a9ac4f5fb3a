"""A standalone Spark cluster in child processes on the loopback interface: a master, and workers with one core each."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["Cluster", "processes"]

START_SECONDS = 60


def processes(having: Callable[[str], bool]) -> Iterator[int]:
    """Yield the ids of the running processes whose working directory satisfies `having`."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                # The link of a deleted directory ends with " (deleted)".
                if having(os.readlink(entry / "cwd")) and "\nState:\tZ" not in (entry / "status").read_text():
                    yield int(entry.name)
            except OSError:
                continue


class Cluster:
    """A cluster that removes its directory when it is closed.

    Parameters
    ----------
    directory : Path
    python : Path
        The interpreter that executors find under its name.

    Attributes
    ----------
    master : str
        URL for ``--master``.
    workers : dict
        By number, the directories below which executors work.
    """

    def __init__(self, directory: Path, python: Path) -> None:
        import pyspark

        self._home = Path(pyspark.__file__).parent
        self._directory = directory
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.workers: dict[int, Path] = {}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self.master = f"spark://127.0.0.1:{self._port}"
        # Workers must not find kbatch in the environment, only in the files of a job.
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | {
            "SPARK_HOME": str(self._home),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(directory / "local"),
            "PATH": f"{python.parent}:{os.environ['PATH']}",
        }

    def __enter__(self) -> Cluster:
        try:
            self._start(
                "master", "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(self._port),
                "--webui-port", "0",
            )  # fmt: skip
            self._wait_for("master", "I have been elected leader")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add_worker(self) -> int:
        """Start another worker; return its number after it has registered with the master."""
        number = len(self.workers)
        self.workers[number] = self._directory / f"work-{number}"
        self._start(
            f"worker-{number}", "org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--cores", "1",
            "--memory", "1g", "--webui-port", "0", "--work-dir", str(self.workers[number]), self.master,
        )  # fmt: skip
        self._wait_for(f"worker-{number}", "Successfully registered with master")
        return number

    def kill_worker(self, number: int) -> None:
        """Kill a worker and its executors with SIGKILL, as if the machine had failed."""
        process = self._processes[f"worker-{number}"]
        process.kill()
        self.kill_executors(number)
        process.wait()

    def executor_processes(self, number: int) -> list[int]:
        """Return the ids of a worker's executors and of their Python processes."""
        return list(processes(lambda cwd: cwd.startswith(f"{self.workers[number]}/")))

    def kill_executors(self, number: int) -> int:
        """Kill a worker's executors and their Python processes; return the number of processes."""
        found = self.executor_processes(number)
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        return len(found)

    def close(self) -> None:
        """End all processes, and remove the directory."""
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()
        for number in self.workers:
            self.kill_executors(number)
        shutil.rmtree(self._directory, ignore_errors=True)

    def _start(self, name: str, *command: str) -> None:
        line = [str(self._home / "bin" / "spark-class"), *command]
        # The process ends together with this one, even if this one is killed.
        setpriv = shutil.which("setpriv")
        if setpriv is not None:
            line = [setpriv, "--pdeathsig", "KILL", *line]
        with (self._directory / f"{name}.out").open("wb") as output:
            self._processes[name] = subprocess.Popen(
                line, env=self._environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, process_group=0
            )

    def _wait_for(self, name: str, text: str) -> None:
        deadline = time.monotonic() + START_SECONDS
        while text not in (output := (self._directory / f"{name}.out").read_text(errors="replace")):
            if self._processes[name].poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the {name} of the Spark cluster did not start:\n{output[-4000:]}")
            time.sleep(0.05)
