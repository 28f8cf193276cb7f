"""Token files of every format give the same ids; each fault of a file names the file and what is wrong with it."""

import struct

import h5py
import numpy as np
import pytest

from hpcpipe.data import Windows, open_tokens

IDS = np.random.Generator(np.random.Philox(1)).integers(0, 5000, 997)
BEGINS = np.array([0, 13, 990, 500])
DOCUMENTS = [0, 100, 100, 101, 500, 997]  # the second one is empty


def megatron(folder, ids, documents, *, code=8, dtype=np.uint16, version=1, cut=0):
    """Write a .bin and .idx pair as Megatron-LM's IndexedDatasetBuilder does, a sequence a document."""
    lengths = np.diff(documents).astype("<i4")
    pointers = (np.asarray(documents[:-1]) * np.dtype(dtype).itemsize).astype("<i8")
    bounds = np.arange(len(documents), dtype="<i8")
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", version, code, len(lengths), len(bounds))
    index = head + lengths.tobytes() + pointers.tobytes() + bounds.tobytes()
    (folder / "set.idx").write_bytes(index[: len(index) - cut])
    ids.astype(dtype).tofile(folder / "set.bin")
    return folder / "set.bin"


def raw(folder, dtype):
    IDS.astype(dtype).tofile(folder / "raw.bin")
    return folder / "raw.bin"


def npy(folder):
    np.save(folder / "ids.npy", IDS.astype(np.int32))
    return folder / "ids.npy"


def hdf5(folder, **how):
    with h5py.File(folder / "ids.h5", "w") as file:
        file.create_dataset("group/ids", data=IDS.astype(np.uint32), **how)
    return folder / "ids.h5"


def headed(folder):
    head = np.zeros(256, dtype="<i4")
    head[:3] = 20240520, 1, len(IDS)
    (folder / "shard.bin").write_bytes(head.tobytes() + IDS.astype("<u2").tobytes())
    return folder / "shard.bin"


FORMATS = {
    "nanoGPT": lambda folder: open_tokens(raw(folder, np.uint16)),
    "nanoGPT uint32": lambda folder: open_tokens(raw(folder, np.uint32), dtype="uint32"),
    "llm.c": lambda folder: open_tokens(headed(folder)),
    "npy": lambda folder: open_tokens(npy(folder)),
    "hdf5 in one piece": lambda folder: open_tokens(hdf5(folder), dataset="group/ids"),
    "hdf5 chunked": lambda folder: open_tokens(hdf5(folder, chunks=(64,), compression="gzip"), dataset="group/ids"),
    "megatron": lambda folder: open_tokens(megatron(folder, IDS, DOCUMENTS)),
    "megatron by its index": lambda folder: open_tokens(megatron(folder, IDS, DOCUMENTS).with_suffix(".idx")),
    "megatron int32": lambda folder: open_tokens(megatron(folder, IDS, DOCUMENTS, code=4, dtype=np.int32)),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_ids(tmp_path, name):
    row = FORMATS[name](tmp_path)
    assert len(row) == len(IDS)
    found = row.read(BEGINS, 7)
    assert found.dtype == np.int64
    assert found.tolist() == [IDS[begin : begin + 7].tolist() for begin in BEGINS]


@pytest.mark.parametrize("name", ["nanoGPT", "npy", "hdf5 in one piece", "megatron"])
def test_what_lies_in_one_piece_is_mapped_and_not_read(tmp_path, name):
    assert isinstance(FORMATS[name](tmp_path)._array, np.memmap)


@pytest.mark.parametrize("end", [0, 4999, 7])
def test_an_end_token_is_put_behind_every_document_that_lacks_it_and_behind_no_empty_one(tmp_path, end):
    ids = IDS.copy()
    ids[499] = end  # the document 101..499 has its own
    ids[[99, 100, 996]] = (end + 1) % 5000
    row = open_tokens(megatron(tmp_path, ids, DOCUMENTS), end_of_document=end)
    expected = [*ids[:100], end, *ids[100:101], end, *ids[101:500], *ids[500:], end]
    assert len(row) == len(expected)
    begins = np.arange(len(expected) - 9)
    assert row.read(begins, 10).tolist() == [[int(i) for i in expected[begin : begin + 10]] for begin in begins]


def test_windows_are_cut_one_after_the_other_with_the_token_that_follows_and_the_tail_is_left_out(tmp_path):
    windows = Windows(open_tokens(raw(tmp_path, np.uint16)), seq_len=83)
    assert len(windows) == 12  # 996 / 83: with one token more the last one would be whole too
    inputs, targets = windows.read(np.array([11, 0]))
    assert inputs.tolist() == [IDS[913:996].tolist(), IDS[:83].tolist()]
    assert targets.tolist() == [IDS[914:997].tolist(), IDS[1:84].tolist()]
    with pytest.raises(ValueError, match=r"raw\.bin: 997 tokens are fewer than one sequence of 998"):
        Windows(open_tokens(raw(tmp_path, np.uint16)), seq_len=997)


def test_a_token_out_of_the_vocabulary_is_named_with_file_and_position(tmp_path):
    ids = IDS.copy()
    ids[437] = 60000
    ids.astype(np.uint16).tofile(tmp_path / "raw.bin")
    windows = Windows(open_tokens(tmp_path / "raw.bin"), seq_len=10, vocab_size=5000)
    windows.read(np.arange(43))
    with pytest.raises(ValueError, match=r"raw\.bin: token 60000 at position 437 .* vocabulary \(0 to 4999\)"):
        windows.read(np.array([3, 43]))
    np.save(tmp_path / "signed.npy", np.where(np.arange(50) == 21, -1, 3))
    with pytest.raises(ValueError, match=r"signed\.npy: token -1 at position 21"):
        Windows(open_tokens(tmp_path / "signed.npy"), seq_len=49).read(np.array([0]))


def test_faults_of_token_files_name_the_file_and_the_way_out(tmp_path):
    odd = tmp_path / "odd.bin"
    odd.write_bytes(b"abc")
    np.save(tmp_path / "matrix.npy", np.zeros((3, 4), dtype=int))
    np.save(tmp_path / "floats.npy", np.zeros(30))
    (tmp_path / "text.npy").write_text("no numbers")
    (tmp_path / "text.h5").write_text("no numbers")
    (tmp_path / "ids.json").write_text("[]")
    for name, message in {
        "odd.bin": r"odd\.bin: 3 bytes are no whole number of uint16 ids; set \[data\] dtype",
        "matrix.npy": r"matrix\.npy: holds int64 of shape \(3, 4\); a row of whole numbers",
        "floats.npy": r"floats\.npy: holds float64 of shape \(30,\); a row of whole numbers",
        "text.npy": r"text\.npy: is no \.npy file",
        "text.h5": r"text\.h5: is no HDF5 file",
        "ids.json": r"ids\.json: token files end with \.bin .* \.npy",
    }.items():
        with pytest.raises(ValueError, match=message):
            open_tokens(tmp_path / name)
    with pytest.raises(ValueError, match=r"ids\.h5: has no data set 'tokens'; it has group/ids"):
        open_tokens(hdf5(tmp_path))


def test_faults_of_megatron_pairs_name_the_file_and_what_disagrees(tmp_path):
    for changes, message in (
        ({"version": 2}, r"set\.idx: has version 2"),
        ({"code": 7, "dtype": np.float32}, r"set\.idx: its ids have the type number 7"),
        ({"cut": 8}, r"set\.idx: is too short"),
        ({"code": 4}, r"set\.idx: its sequences do not follow each other"),
    ):
        with pytest.raises(ValueError, match=message):
            open_tokens(megatron(tmp_path, IDS, DOCUMENTS, **changes))
    path = megatron(tmp_path, IDS, DOCUMENTS)
    with path.open("ab") as file:
        file.write(b"\0\0")
    with pytest.raises(ValueError, match=r"set\.bin: holds 998 tokens, but set\.idx says 997"):
        open_tokens(path)
    (tmp_path / "set.idx").write_bytes(b"something else entirely, long enough for a head")
    with pytest.raises(ValueError, match=r"set\.idx: is no index of a Megatron data set"):
        open_tokens(path)
