"""Write the log directory of the tutorial with a real broker: ``python -m tests.broker.shop``.

A shop with two topics of JSON values: two days of ``orders`` in three partitions, and their ``payments``.
"""

from __future__ import annotations

import json
import math
import random
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from .server import running

GOLDEN = Path(__file__).parents[1] / "golden" / "shop"
FIRST_DAY = datetime(2026, 3, 2, tzinfo=UTC)
HOURS = 48
# In these hours of the second day nobody could order.
OUTAGE = (38, 39)
COUNTRIES = {"DE": 5, "FR": 3, "PL": 2, "NL": 1}
PRODUCTS = [("mug", 9.5), ("shirt", 24.0), ("poster", 14.0), ("lamp", 49.0), ("bag", 32.5)]
# Values that are not orders, before the orders with these numbers.
BAD = {812: b"ping", 1560: b'{"id": 101560, "customer": "c-0117", "total": 31.5', 2044: b"\x00\x00\x00\x00\x07"}


class Record(NamedTuple):
    """A record to produce; the time is in milliseconds since the epoch."""

    topic: str
    key: str
    value: bytes
    time: int


def orders_in(hour: int, chance: random.Random) -> int:
    """Return how many orders an hour has: few at night, most in the evening."""
    if hour in OUTAGE:
        return 0
    of_day = hour % 24
    noon, evening = (math.exp(-((of_day - peak) ** 2) / 8) for peak in (12, 20))
    return round((12 + 70 * noon + 150 * evening) * chance.uniform(0.8, 1.2))


def records() -> Iterator[Record]:
    """Yield all records in the order of their times, the same in each run."""
    chance = random.Random(37)
    number = 0
    for hour in range(HOURS):
        for second in sorted(chance.uniform(0, 3600) for _ in range(orders_in(hour, chance))):
            time = int((FIRST_DAY + timedelta(hours=hour, seconds=second)).timestamp() * 1000)
            customer = f"c-{int(chance.paretovariate(0.3)) % 900:04d}"
            if number in BAD:
                yield Record("orders", customer, BAD[number], time)
            count = chance.choice([1, 1, 1, 2, 2, 3])
            items = [{"product": name, "price": price} for name, price in chance.sample(PRODUCTS, count)]
            order = {
                "id": 100_000 + number,
                "customer": customer,
                "country": chance.choices(list(COUNTRIES), list(COUNTRIES.values()))[0],
                "items": items,
                "total": sum(item["price"] for item in items),
            }
            yield Record("orders", customer, json.dumps(order).encode(), time)
            method = chance.choice(["card", "card", "invoice"])
            payment = {"order": order["id"], "method": method, "amount": order["total"]}
            yield Record("payments", customer, json.dumps(payment).encode(), time + chance.randrange(2_000, 60_000))
            number += 1


def main() -> None:
    shutil.rmtree(GOLDEN, ignore_errors=True)
    with running() as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        topics = [NewTopic("orders", 3, 1), NewTopic("payments", 1, 1)]
        for future in admin.create_topics(topics).values():
            future.result(60)
        producer = confluent_kafka.Producer({
            "bootstrap.servers": broker.bootstrap, "compression.type": "zstd", "linger.ms": 1000,
            "batch.num.messages": 200, "enable.idempotence": True,
        })  # fmt: skip
        for record in records():
            producer.produce(record.topic, record.value, record.key, timestamp=record.time)
        assert producer.flush(60) == 0
        broker.stop()
        # What the broker keeps for itself is as large as the topics.
        shutil.copytree(broker.log_dir, GOLDEN, ignore=shutil.ignore_patterns("__*", ".*", "bootstrap.checkpoint"))


if __name__ == "__main__":
    main()
