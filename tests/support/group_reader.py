"""``group_reader.py SETTINGS PATH``: a member of a group, which writes what it reads and commits to a file.

SIGTERM ends it in an orderly way.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import zlib
from typing import Any

import kbatch
from kbatch.live import BrokerError

# Codes of a commit without a membership: the records are read again, by this member or by another one.
LOST = frozenset(
    [
        kbatch.ErrorCode.ILLEGAL_GENERATION,
        kbatch.ErrorCode.UNKNOWN_MEMBER_ID,
        kbatch.ErrorCode.REBALANCE_IN_PROGRESS,
        kbatch.ErrorCode.FENCED_MEMBER_EPOCH,
        kbatch.ErrorCode.STALE_MEMBER_EPOCH,
    ]
)


def main() -> None:
    output = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def report(**event: Any) -> None:
        # One call, so that a line is complete even if the process is killed.
        os.write(output, json.dumps(event).encode() + b"\n")

    stopped = threading.Event()

    def stop(*_: object) -> None:
        stopped.set()
        threading.Thread(target=consumer.close).start()

    consumer = kbatch.consume(end=None, **json.loads(sys.argv[1]))
    signal.signal(signal.SIGTERM, stop)
    report(begins=os.getpid())
    try:
        for table in consumer:
            crc = zlib.crc32(b"\n".join(value or b"" for value in table.values()))
            report(place=[table.topic, table.partition], offsets=table.records["offset"].tolist(), crc=crc)
            try:
                consumer.commit()
            except BrokerError as error:
                if error.code not in LOST:
                    raise
                report(lost=str(error))
            else:
                report(is_committed=True)
        report(ends=True)
    except BaseException as error:
        # A commit fails if the consumer is closed meanwhile.
        report(**{"ends" if stopped.is_set() else "error": f"{type(error).__name__}: {error}"})
    finally:
        consumer.close()


if __name__ == "__main__":
    main()
