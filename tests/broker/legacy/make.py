"""``python -m tests.broker.legacy.make DIRECTORY``: message sets of magic 0 and 1, written by old releases of Kafka.

It needs Java 17 or newer with its compiler, and Maven. It made the files in ``tests/golden/legacy-clients``,
which the tests read. They never change, because the old releases do not change.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from ..server import find_jars, find_java

SOURCES = Path(__file__).parent
MAKERS = {"Core08": "kafka_2.11:0.8.2.2", "Core010": "kafka_2.11:0.10.0.1", "Clients28": "kafka-clients:2.8.2"}
POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>kbatch</groupId>
  <artifactId>legacy</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>{}</artifactId>
      <version>{}</version>
    </dependency>
  </dependencies>
</project>
"""


def make(directory: Path) -> None:
    java = find_java()
    directory.mkdir(parents=True, exist_ok=True)
    for name, artifact in MAKERS.items():
        with tempfile.TemporaryDirectory() as work:
            pom = Path(work, "pom.xml")
            pom.write_text(POM.format(*artifact.split(":")))
            path = f"{find_jars(pom)}/*"
            sources = [os.fspath(SOURCES / f"{each}.java") for each in ("Written", name)]
            compiler = Path(java).with_name("javac")
            subprocess.run([compiler, "-nowarn", "-cp", path, "-d", work, *sources], check=True)
            subprocess.run([java, "-cp", f"{work}:{path}", name], cwd=directory, check=True)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
