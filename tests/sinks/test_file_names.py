"""The names of an output's files: each gives back the run that has written it."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

pytest.importorskip("pyarrow")

from kbatch.sinks.file_names import FileNames, log_of, run_of
from kbatch.sinks.outputs import OutputPlace

_RUNS = st.text("0123456789abcdef", min_size=8, max_size=8)


@given(_RUNS, st.integers(0, 2**63 - 1), st.integers(0, 10**9), st.sampled_from([".parquet", ".arrow"]))
@example("32588309", 10, 0, ".parquet")
@example("00000000", 2**63 - 1, 12345678, ".arrow")
def test_every_name_gives_back_its_run_also_if_the_id_has_only_digits(
    run: str, offset: int, task: int, suffix: str
) -> None:
    names = FileNames(OutputPlace("out"), run)
    data = names.data_file(("t=1/2", 3), "2026-11-28", offset, task, suffix)
    assert log_of(data) == ("t=1/2", 3)
    assert {run_of(name) for name in (data, names.losses_file(task, 7), names.transactions_file)} == {run}


@pytest.mark.parametrize(
    "name", ["part-00000-0a1b2c3d.parquet", "part-0a1b2c3d-0a1b2c3d.parquet", "part-1-2-0a1b2c3d.parquet", "x.parquet"]
)
def test_files_of_another_origin_have_no_run(name: str) -> None:
    assert run_of(name) is None
