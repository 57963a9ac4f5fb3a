"""The benchmark's report: a floor that did not run is never reported as met, and documented figures come from a run."""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import chart, floors, load, readme, report
from bench.__main__ import main, run
from bench.results import Results, compact

ROOT = Path(__file__).parent.parent
STAGES = ["decode", "foreign", "threads", *dict.fromkeys(stage for stage, _, _ in floors.PEERS if stage != "decode")]


def document(results: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {
        "machine": "a machine",
        "versions": {"Python": "3"},
        "size": 32_000_000,
        "quick": False,
        "other_work": 0.01,
        "skipped": [],
        "failed": [],
        "live": {},
        "results": results,
    } | more


def entry(stage: str, corpus: str, who: str, seconds: float) -> dict[str, Any]:
    return {
        "stage": stage, "corpus": corpus, "who": who, "seconds": seconds,
        "records": 1000, "payload_bytes": 10**6,
    }  # fmt: skip


def everything() -> list[dict[str, Any]]:
    """Return results that meet every floor: kbatch and libraries alone take 50 us, other contestants 10 ms."""
    own, other = 50e-6, 10e-3
    found = []
    for stage, corpus, _ in floors.PEERS:
        found += [entry(stage, corpus, "kbatch", own), entry(stage, corpus, "aiokafka", other)]
    for codec, _ in floors.CODECS:
        corpus = f"medium-16k-{codec}"
        found += [entry("decode", corpus, "kbatch", own), entry("decode", corpus, "library alone", own)]
    for corpus, _, _ in floors.LANGUAGES:
        found += [entry("foreign", corpus, who, other) for who in ("Java", "Go franz-go", "Rust kafka-protocol")]
        found += [entry("decode", corpus, "kbatch", own)] * (corpus != "small")
    for corpus, _ in floors.THREADS:
        found += [entry("threads", corpus, "two threads", own), entry("threads", corpus, "one thread", 2 * own)]
    return found


def test_no_floor_is_met_without_a_measurement() -> None:
    found = floors.floors(Results(document([])))
    assert {floor.state for floor in found} == {"not run"}
    assert not any(floor.met for floor in found)
    assert len(found) == len(floors.PEERS) + len(floors.LANGUAGES) + len(floors.CODECS) + len(floors.THREADS) == 14


def test_floors_are_met_by_sufficient_results() -> None:
    found = floors.floors(Results(document(everything())))
    assert {floor.state for floor in found} == {"met"}


@pytest.mark.parametrize("stage", STAGES)
def test_a_missing_stage_is_reported(stage: str) -> None:
    whole = floors.floors(Results(document(everything())))
    found = floors.floors(Results(document([row for row in everything() if row["stage"] != stage])))
    assert [floor.text for floor in found] == [floor.text for floor in whole]
    missing = [floor for floor in found if floor.state == "not run"]
    assert missing
    assert all(floor.state == "met" for floor in found if floor not in missing)
    text = report.floors_table(Results(document([row for row in everything() if row["stage"] != stage])))
    assert text.count("| not run |") == len(missing)


@pytest.mark.parametrize(
    ("side", "bound", "measured", "state"),
    [
        (floors.AT_LEAST, 8, 8.0, "met"),
        (floors.AT_LEAST, 8, 7.99, "**not met**"),
        (floors.AT_MOST, 1.12, 1.12, "met"),
        (floors.AT_MOST, 1.12, 1.13, "**not met**"),
        (floors.AT_MOST, 1.12, None, "not run"),
    ],
)
def test_bounds_are_inclusive(side: str, bound: float, measured: float | None, state: str) -> None:
    floor = floors.Floor("", side, bound, measured)
    assert floor.state == state
    assert floor.met == (state == "met")


def test_the_fastest_peer_is_compared() -> None:
    rows = [entry("decode", "small", who, seconds) for who, seconds in (("kbatch", 2), ("kafka-python", 9))]
    assert Results(document(rows)).fastest_peer("decode", "small") == ("kafka-python", 4.5)
    rows.append(entry("decode", "small", "aiokafka", 3))
    assert Results(document(rows)).fastest_peer("decode", "small") == ("aiokafka", 1.5)
    assert Results(document(rows)).fastest_peer("encode", "small") is None


@pytest.mark.parametrize("form", ["{language} {name}", "{name} ({language})"])
def test_decoders_of_other_languages_are_compared(form: str) -> None:
    rows = [entry("decode", "small", "kbatch", 1.0)]
    for language, name, seconds, in_turns in (("Go", "franz-go", 6, 2.0), ("Rust", "a", 5, 2.5), ("Rust", "b", 8, 2.0)):
        who = form.format(language=language, name=name)
        rows.append(entry("foreign", "small", who, seconds))
        rows.append(entry("foreign", "small", f"kbatch, in turns with {who}", in_turns))
        rows.append(entry("foreign", "small", f"kbatch, in turns with {who}, with sums", 2 * in_turns))
    results = Results(document(rows))
    assert results.foreign("small", "Go") == ("franz-go", 3.0, 1.5)
    assert results.foreign("small", "Rust") == ("a", 2.0, 1.0)
    assert results.foreign("small", "Rust", "Go") == ("a", 2.0, 1.0)
    assert results.foreign("small", "Java") is None
    assert results.foreign("large", "Rust") is None


def test_compact_keeps_all_contestants() -> None:
    info = {"stage": "s", "corpus": "c", "who": "kbatch", "records": 1, "payload_bytes": 1}
    benchmarks = [
        {"extra_info": info | {"others": {"x": 2.0}}, "stats": {"median": 1.0}},
        {
            "extra_info": info | {"who": "two", "other": "one", "other_seconds": 4.0, "sums_seconds": 5},
            "stats": {"median": 3.0},
        },
        {"extra_info": {}, "stats": {"median": 1.0}},
    ]
    found = compact({"benchmarks": benchmarks})
    assert {row["who"]: row["seconds"] for row in found} == {
        "kbatch": 1.0,
        "x": 2.0,
        "two": 3.0,
        "one": 4.0,
        "two, with sums": 5.0,
    }


def test_results_are_equal_after_writing_and_reading(tmp_path: Path) -> None:
    results = Results(document(everything()))
    results.write(tmp_path / "results.json")
    assert Results.read(tmp_path / "results.json").document == results.document


def test_clients_on_a_broker_are_reported() -> None:
    live = {"small": {report.LIVE: {"count": 2e6, "arrow": 1e6}, "raw": {"count": 3e6}}}
    text = report.live_table(live)
    assert text in readme.full_block(Results(document([], live=live)))


def test_the_block_of_a_page_is_replaced() -> None:
    text = f"before\n{readme.BEGIN}\nold\n{readme.END}\nafter\n"
    renewed = readme.replace_block(text, "new\n\nlines")
    assert readme.read_block(renewed) == "new\n\nlines"
    assert renewed == f"before\n{readme.BEGIN}\n\nnew\n\nlines\n\n{readme.END}\nafter\n"
    assert readme.replace_block(renewed, "new\n\nlines") == renewed


@pytest.mark.parametrize(
    "text",
    ["", readme.BEGIN, f"{readme.END}\n{readme.BEGIN}", f"{readme.BEGIN}\n{readme.END}\n{readme.BEGIN}\n{readme.END}"],
)
def test_a_missing_block_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="the block needs"):
        readme.replace_block(text, "new")


@pytest.mark.parametrize("page", readme.BLOCKS)
def test_documented_figures_come_from_a_run(page: str) -> None:
    """After a change of the report's form: ``python -m bench --from bench/results.json --readme``."""
    results = Results.read(ROOT / "bench" / "results.json")
    assert readme.read_block((ROOT / page).read_text()) == readme.BLOCKS[page](results)


def test_the_readme_has_the_chart_for_light_and_dark_pages_and_no_table() -> None:
    block = readme.chart_block(Results.read(ROOT / "bench" / "results.json"))
    assert re.findall(r'(?:src|srcset)="(\S+)"', block) == ["bench/chart-dark.svg", "bench/chart.svg"]
    assert "|" not in block


def test_decoders_that_are_faster_than_kbatch_are_listed() -> None:
    """Also those that are faster only if kbatch sums its columns, as they do."""
    own = {"stage": "foreign", "records": 1000, "payload_bytes": 40_000}
    entries = []
    for corpus, seconds, summed in (("small", 1.0, 3.0), ("large", 2.5, 3.0), ("ten", 1.0, 1.5)):
        times = {"x (Rust)": 2.0, "kbatch, in turns with x (Rust)": seconds}
        times["kbatch, in turns with x (Rust), with sums"] = summed
        entries += [own | {"corpus": corpus, "who": who, "seconds": each} for who, each in times.items()]
    results = Results(document(entries))
    assert [corpus for corpus, _ in report.faster_decoders(results)] == ["small", "large"]
    assert "| large | x | 0.80 | 0.67 |" in readme.full_block(results)
    assert "In the rows *large*, x is as fast or faster." in readme.chart_block(results)
    assert "as fast or faster" not in readme.chart_block(Results(document([])))


def test_the_figures_of_where_kbatch_is_slower_are_in_the_tables() -> None:
    """Except those of reading and mapping files, for which there is no table."""
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    _, _, rest = page.partition("## Where kbatch is slower\n")
    bullets, _, results = rest.partition("\n## ")
    figures = {
        each for bullet in bullets.split("\n- ") if "mapping" not in bullet for each in re.findall(r"\d+\.\d+", bullet)
    }
    assert len(figures) > 8
    assert figures - set(re.findall(r"\d+\.\d+", results)) == set()


@pytest.mark.parametrize("name", ["chart.svg", "chart-dark.svg", "chart.png"])
def test_the_charts_exist(name: str) -> None:
    assert (ROOT / "bench" / name).stat().st_size > 0


def test_the_colours_of_a_chart_differ_from_each_other_and_from_its_page() -> None:
    for theme in (chart.LIGHT, chart.DARK):
        colours = [theme.colour(series) for who, series in chart.SERIES.items() if who != "two threads"]
        assert len({*colours, theme.page}) == len(colours) + 1


WITHOUT_FOREIGN = [row for row in everything() if row["stage"] != "foreign"]


@pytest.mark.parametrize(("change", "arguments", "code"), [
    ({}, [], 0),
    ({}, ["--check"], 0),
    ({"failed": ["test_x"]}, [], 1),
    ({"results": everything()[4:]}, [], 1),
    ({"results": everything()[4:]}, ["-k", "large"], 0),
    ({"results": WITHOUT_FOREIGN}, [], 1),
        ({"results": WITHOUT_FOREIGN, "skipped": ["test_foreign.py: Kafka (Java) needs javac"]}, [], 0),
])  # fmt: skip
def test_the_exit_status_reports_unmet_and_missing_floors(
    change: dict[str, Any], arguments: list[str], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr("bench.chart.draw", lambda results, directory: [])
    given = tmp_path / "given.json"
    Results(document(everything()) | change).write(given)
    assert main(["--from", str(given), "--out", str(tmp_path), *arguments]) == code
    assert "## Floors" in capsys.readouterr().out
    assert Results.read(tmp_path / "results.json").document == Results.read(given).document


@pytest.mark.parametrize("part", [["--quick"], ["-k", "small"]])
def test_readme_accepts_only_complete_timed_runs(part: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--readme", *part])
    assert "complete, timed runs" in capsys.readouterr().err


def test_readme_refuses_figures_of_a_busy_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.chart.draw", lambda results, directory: [])
    given = tmp_path / "given.json"
    Results(document(everything(), other_work=2 * load.BUSY)).write(given)
    with pytest.raises(SystemExit, match=r"^bench: other processes used 0\.20 processors, .* at most 0\.1"):
        main(["--readme", "--from", str(given), "--out", str(tmp_path)])
    # Before a run, too.
    monkeypatch.setattr("bench.__main__.other_work", lambda: 2 * load.BUSY)
    monkeypatch.setattr("bench.__main__.run", lambda options: pytest.fail("measured on a busy machine"))
    with pytest.raises(SystemExit, match=r"^bench: other processes use 0\.20 processors"):
        main(["--readme", "--out", str(tmp_path)])


@pytest.mark.parametrize(("processors", "text"), [
    (load.BUSY, "Other processes used 0.10 processors."),
    (load.BUSY + 0.01, "**The machine was busy: other processes used 0.11 processors"),
    (None, "How busy the machine was is not known."),
])  # fmt: skip
def test_the_report_says_how_busy_the_machine_was(processors: float | None, text: str) -> None:
    assert text in report.report(Results(document([], other_work=processors)))


def test_other_work_is_the_use_of_the_processors_without_this_process_and_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    monkeypatch.setattr(load, "STAT", tmp_path / "stat")

    def at(seconds: float, *, others: float, own: float) -> None:
        fields = [int(ticks * each) for each in (others + own, 0, 0, 100 + seconds, 7, 0, 0, 0)]
        load.STAT.write_text(f"cpu  {' '.join(map(str, fields))} 0 0\ncpu0 1 2 3\n")
        monkeypatch.setattr("bench.load.os.times", lambda: (own / 2, 0, own / 2, 0, seconds))
        monkeypatch.setattr("bench.load.time.monotonic", lambda: seconds)

    at(10, others=3, own=1)
    work = load.OtherWork()
    at(20, others=3, own=19)
    assert work.processors() == 0
    at(30, others=13, own=19)
    assert work.processors() == 0.5
    load.STAT.unlink()
    assert work.processors() is None
    assert load.OtherWork().processors() is None


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pytest_benchmark", None)
    with pytest.raises(SystemExit, match=r"^bench: .*pytest_benchmark.*; run pip install -e '\.\[bench\]'"):
        run(argparse.Namespace(k="", quick=True))
