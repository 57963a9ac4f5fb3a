"""Foreign readers read the output of encode() for every magic and codec (`python -m tests.broker.acceptance`)."""

from __future__ import annotations

from pathlib import Path

import pytest

import kbatch

try:
    from broker.acceptance import CASES, REFUSALS, make, markdown, readers, table
    from broker.server import Unavailable
except ImportError as error:
    pytest.skip(f"a client of Kafka is missing: {error}", allow_module_level=True)

pytestmark = pytest.mark.broker


@pytest.mark.parametrize(("magic", "codec"), CASES)
def test_the_cases_cover_every_kind_of_batch(magic: int, codec: str) -> None:
    """Checks the table: the file of a case contains its magic and codec, and every kind of batch."""
    case = make(magic, codec)
    decoded = kbatch.decode(case.data, include_control=True)
    batches = decoded.batches
    assert set(batches["magic"].tolist()) == {magic}
    assert len(batches) > 8
    plain = (batches["attributes"] & 0x20 == 0) & (batches["record_count"] > 0)
    assert set((batches["attributes"][plain] & 7).tolist()) == {kbatch.Codec[codec.upper()]}
    if magic == 2:
        assert {0x08, 0x10, 0x30, 0x40} <= set((batches["attributes"] & ~7).tolist())
        assert 0 in batches["record_count"]
    assert [row.offset for row in case.rows] == kbatch.decode(case.data, include_control=True).records[
        "offset"
    ].tolist()


def test_every_reader_reads_every_magic_and_codec(tmp_path: Path) -> None:
    try:
        results = table(tmp_path)
    except Unavailable as error:
        pytest.skip(str(error))
    assert len(results) == len(CASES) * len(readers())
    wrong = {
        key: result
        for key, result in results.items()
        if result != "ok" and not (result.startswith("not read") and (key[0].split()[0], *key[1:]) in REFUSALS)
    }
    assert wrong == {}, markdown(results)
