"""Where a fault is shown: inside inline tables, dotted keys and lists, beside wide characters, under any line end."""

from pathlib import Path

from job_text import VALID, fault_of, faults_of, place, write_job

from hpcpipe.job.positions import Positions


def test_a_key_inside_an_inline_table_is_found(tmp_path: Path) -> None:
    fault = fault_of(write_job(tmp_path, "batch = { microbatches = 4, microbatch_size = 0 }\n" + VALID))
    assert place(fault) == (1, 47)
    assert fault.length == 1


def test_a_dotted_key_is_found(tmp_path: Path) -> None:
    fault = fault_of(write_job(tmp_path, "batch . microbatches = 0\n" + VALID))
    assert place(fault) == (1, 24)
    unknown = fault_of(write_job(tmp_path, "batch.size = 1\n" + VALID))
    assert place(unknown) == (1, 1)


def test_an_entry_of_a_list_over_several_lines_is_found(tmp_path: Path) -> None:
    fault = fault_of(write_job(tmp_path, VALID + "split = [\n  3, # most\n\t 0,\n]\n"))
    assert place(fault) == (16, 3)
    assert fault.source == "\t 0,"


def test_columns_count_characters_and_not_bytes(tmp_path: Path) -> None:
    fault = fault_of(write_job(tmp_path, 'job = { name = "naïve 模型 🚂", steps = 0 }\n' + VALID))
    assert place(fault) == (1, 38)
    assert fault.source[fault.column - 1] == "0"


def test_a_quoted_key_is_found(tmp_path: Path) -> None:
    fault = fault_of(write_job(tmp_path, VALID + '"pipelin\\u0065" = 2\n'))
    assert "parallel.pipeline is written twice" in fault.message
    assert place(fault_of(write_job(tmp_path, VALID + '"pipe line" = 2\n'))) == (14, 1)


def test_windows_line_ends_and_a_byte_order_mark_change_nothing(tmp_path: Path) -> None:
    text = VALID.replace("heads = 4", "heads = 0")
    windows = text.replace("\n", "\r\n").encode()
    for form in (windows, b"\xef\xbb\xbf" + windows, b"\xef\xbb\xbf" + text.encode()):
        fault = fault_of(write_job(tmp_path, form))
        assert place(fault) == (5, 9)
        assert fault.source == "heads = 0"
    assert place(fault_of(write_job(tmp_path, b"\xef\xbb\xbf" + b"steps = 0\n" + VALID.encode()))) == (1, 1)


def test_a_file_without_a_last_line_end_is_read_to_its_end(tmp_path: Path) -> None:
    assert place(fault_of(write_job(tmp_path, VALID + "data = 0"))) == (14, 8)


def test_a_clash_with_a_default_is_shown_at_the_value_that_is_written(tmp_path: Path) -> None:
    fault = fault_of(write_job(tmp_path, VALID.replace("pipeline = 2", "split = [1, 3]")))
    assert fault.message == "split lists 2 stages, but pipeline = 1"
    assert place(fault) == (13, 9)
    ranks = fault_of(write_job(tmp_path, VALID.replace("pipeline = 2", "data = 2")), ranks=3)
    assert place(ranks) == (13, 8)


def test_a_table_that_is_only_implied_by_a_longer_name_is_found(tmp_path: Path) -> None:
    faults = faults_of(write_job(tmp_path, VALID + "[clusters.site]\nname = 1\n"))
    assert [place(fault) for fault in faults] == [(14, 2)]


def test_places_of_a_text_with_faults_are_still_found() -> None:
    positions = Positions("[a]\nx = 1\ny = oops\nz = 3\n")
    found = positions.find(("a", "x"))
    assert found is not None
    assert found.value == (2, 5, 1)
