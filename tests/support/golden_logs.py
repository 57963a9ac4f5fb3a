"""The golden logs, and the facts that Kafka's consumer reports about the transactional one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parents[1] / "golden"
LOGS = GOLDEN / "logs"
TXN_LOG = LOGS / "txn-0"
TXN_FACTS: dict[str, Any] = json.loads((TXN_LOG / "READ_COMMITTED.json").read_text())
COMMITTED: list[int] = TXN_FACTS["readCommittedOffsets"]
