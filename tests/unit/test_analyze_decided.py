"""What a run decided on the way is in the report and its JSON: what changed something first, the rest counted."""

import json
from pathlib import Path

from click.testing import CliRunner
from synthetic_log import Pipeline, write_run

from hpcpipe.analyze.decided import Decided
from hpcpipe.cli.analyze import analyze

STEPS = 4
DECISIONS = (
    (1, "grouping", "network: messages from stage 0 to 1 take 9 ms"),
    (2, "grouping", "try: k = 2, 40 ms predicted"),
    (3, "grouping", "stay: nothing is faster"),
    (3, "fusion", "buckets of 4 MB"),
    (9, "grouping", "try: of a step that is not analysed"),
)


def _run(folder: Path, decisions: tuple[tuple[int, str, str], ...]) -> Path:
    writers = write_run(folder, Pipeline(2, 4, 1_000_000, 2_000_000, steps=STEPS), close=False)
    for writer in writers:
        for decision in decisions:
            writer.decision(*decision)
        writer.close()
    return folder


def _analyze(folder: Path, *options: str) -> str:
    result = CliRunner().invoke(analyze, [str(folder), *options])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_report_shows_what_changed_something_and_json_has_all(tmp_path: Path) -> None:
    folder = _run(tmp_path, DECISIONS)
    text = _analyze(folder)
    assert "what the run decided on the way" in text
    assert "try: k = 2, 40 ms predicted" in text
    assert "buckets of 4 MB" in text
    assert "nothing is faster" not in text
    assert "2 more" in text
    document = json.loads(_analyze(folder, "--json"))
    rows = [(each["step"], each["what"], each["why"]) for each in document["decisions"]]
    assert rows == list(DECISIONS[:4]), "of one rank, and of the steps that are analysed"
    assert len(document["per_step"]["k"]) == STEPS


def test_a_run_that_decided_nothing_says_nothing_of_it(tmp_path: Path) -> None:
    folder = _run(tmp_path / "run", ())
    assert "what the run decided on the way" not in _analyze(folder)
    assert json.loads(_analyze(folder, "--json"))["decisions"] == []


def test_where_nothing_changed_the_last_words_are_shown(tmp_path: Path) -> None:
    assert "stay: nothing is faster" in _analyze(_run(tmp_path, (DECISIONS[0], DECISIONS[2])))
    assert not Decided(*DECISIONS[0]).changes
    assert Decided(0, "order", "replayed").changes
