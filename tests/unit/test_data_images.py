"""Records of images and text: what is read, in which order, at what cost, and what is said of those that are wrong."""

import gzip
import json
from itertools import zip_longest

import numpy as np
import pytest
from picture_records import RECORDS, add, pixels, png, write_lines, write_tar
from PIL import Image
from small_tokenizer import END as END_OF_TEXT
from small_tokenizer import write_tokenizer
from tokenizers import Tokenizer

from hpcpipe.data import (
    Geometry,
    ImageRecords,
    ImageTextOrder,
    ImageTextSource,
    RecordError,
    image_text_batches,
    open_tokenizer,
)
from hpcpipe.data.image_records import IMAGE

GEOMETRY = Geometry(patch=4, merge=2, channels=3, max_side=64, shrink=False)
BEGIN, END = 256, 257


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Keep indices where the test can look at them."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder / "hpcpipe" / "images"


def _records(path, geometry=GEOMETRY, context=200):
    return ImageRecords(path, geometry, context=context)


def _order(records, **changes):
    sizes = {"seed": 5, "microbatches": 2, "microbatch_size": 3, "replicas": 2}
    return ImageTextOrder(records, **{**sizes, **changes})


def test_patches_are_the_picture_s_own_pixels_square_by_square(tmp_path):
    records = _records(write_lines(tmp_path / "set", [([(16, 8)], "x")]))
    picture = pixels(16, 8, seed=[0, 0])
    (patches,) = records.pixels(0)
    squares = [(0, 0), (0, 4), (4, 0), (4, 4), (0, 8), (0, 12), (4, 8), (4, 12)]  # row, column of each patch
    for patch, (row, column) in zip(patches, squares, strict=True):
        expected = picture[row : row + 4, column : column + 4].transpose(2, 0, 1).ravel()
        assert (patch == expected).all()
    assert records.grids(0) == [(2, 4)]


def test_a_tar_and_json_lines_of_the_same_records_read_alike(tmp_path):
    lines, tar = _records(write_lines(tmp_path / "set")), _records(write_tar(tmp_path / "set.tar"))
    assert len(lines) == len(tar) == len(RECORDS)
    for ours, theirs in zip(lines.loads, tar.loads, strict=True):
        assert (ours == theirs).all()
    for record in range(len(RECORDS)):
        assert (lines.sequence(record) == tar.sequence(record)).all()
        a, b = lines.pixels(record), tar.pixels(record)
        assert len(a) == len(b) == len(RECORDS[record][0])
        assert all((x == y).all() for x, y in zip(a, b, strict=True))


def test_the_tars_of_a_folder_are_one_set_in_the_order_of_their_names(tmp_path):
    write_tar(tmp_path / "shards" / "b.tar", [([], "second"), ([(8, 8)], "third")])
    write_tar(tmp_path / "shards" / "a.tar", [([(16, 8)], "first")])
    records = _records(tmp_path / "shards")
    texts = [bytes(t for t in records.sequence(i).tolist() if 0 <= t < 256).decode() for i in range(3)]
    assert texts == ["first", "second", "third"]
    assert [len(records.pixels(i)) for i in range(3)] == [1, 0, 1]


def test_images_stand_before_the_text_or_where_it_marks_them(tmp_path):
    path = write_lines(tmp_path, [([(8, 8), (16, 8)], "ab"), ([(8, 8), (16, 8)], "a<image>b<image>")])
    records = _records(path)
    a, b = b"ab"
    assert records.sequence(0).tolist() == [BEGIN, IMAGE, IMAGE, IMAGE, a, b, END]
    assert records.sequence(1).tolist() == [BEGIN, a, IMAGE, b, IMAGE, IMAGE, END]


TEXTS = [
    ([(8, 8)], "one fish two fish"),
    ([(8, 8), (16, 8)], "<image>größer, <image>fish  and fish"),
    ([], f"a fish{END_OF_TEXT}two fish"),
    ([(16, 16)], ""),
]


def test_a_tokenizer_s_ids_are_the_library_s_own_and_begin_and_end_stand_behind_them(tmp_path):
    file = write_tokenizer(tmp_path / "tokenizer.json", "one fish two fish and a fish " * 20, size=280)
    library = Tokenizer.from_file(str(file))
    begin, end = library.get_vocab_size(), library.get_vocab_size() + 1
    expected = []
    for pictures, text in TEXTS:
        first, *others = [library.encode(part, add_special_tokens=False).ids for part in text.split("<image>")]
        tokens = [[IMAGE] * (width * height // 64) for width, height in pictures]
        if not others:  # all images stand before the text
            first, others = [], [[]] * (len(tokens) - 1) + [first]
        expected.append([begin, *first])
        for image, part in zip_longest(tokens, others, fillvalue=[]):
            expected[-1] += image + part
        expected[-1].append(end)
    order = ImageTextOrder(
        ImageRecords(write_lines(tmp_path / "set", TEXTS), GEOMETRY, context=60, tokenizer=open_tokenizer(file)),
        seed=5,
        microbatches=2,
        microbatch_size=2,
        replicas=1,
    )
    batches = image_text_batches(order, replica=0, steps=9)
    batches.load(3)
    assert len({token for record in expected for token in record}) > 20
    for microbatch, chosen in enumerate(order.step(3)[0].tolist()):
        inputs, (targets, total) = batches.inputs(microbatch), batches.targets(microbatch)
        wanted = [expected[record] for record in chosen]
        packed = [token for record in wanted for token in record]
        assert inputs["text"].tolist() == [token for token in packed if token != IMAGE]
        assert inputs["lengths"] == [len(record) for record in wanted]
        assert targets.tolist() == [token for record in wanted for token in record[1:] if token != IMAGE]
        places = inputs["order"].tolist()
        text = len(inputs["text"])
        assert [packed[i] for i in range(len(packed)) if places[i] >= text] == [IMAGE] * (len(packed) - text)
        assert order.loads(3).tokens[0, microbatch] == len(packed)
        assert order.loads(3).targets[0, microbatch] == len(targets)
        assert total == sum(len([t for t in record if t != IMAGE]) - 1 for record in expected)  # a step is an epoch


def test_an_index_is_made_anew_for_another_tokenizer_and_kept_for_each(tmp_path, cache):
    path = write_lines(tmp_path / "set", [([], "fish " * 8)])
    files = [write_tokenizer(tmp_path / f"{size}.json", "fish fish fish", size=size) for size in (257, 261)]
    found = [
        int(ImageRecords(path, GEOMETRY, context=60, tokenizer=open_tokenizer(file)).loads.tokens[0])
        for file in (None, *files, None)
    ]
    bare, learned = (Tokenizer.from_file(str(file)).encode("fish " * 8, add_special_tokens=False).ids for file in files)
    assert found == [42, len(bare) + 2, len(learned) + 2, 42]
    assert len(learned) < len(bare) == 40
    assert len(list(cache.glob("*.npz"))) == 3


def test_loads_are_counted_from_sizes_alone(tmp_path):
    path = write_lines(tmp_path / "set")
    for file in (tmp_path / "set").glob("*.png"):
        content = file.read_bytes()
        file.write_bytes(content[:60] + bytes(len(content) - 60))  # the size stays, nothing can be decoded
    loads = _records(path).loads
    for number, (sizes, text) in enumerate(RECORDS):
        patches = [w * h // 16 for w, h in sizes]
        targets = len(text.replace("<image>", "").encode()) + 1
        tokens = sum(patches) // 4 + targets + 1
        expected = (sum(patches), sum(n * n for n in patches), sum(patches) // 4, tokens, tokens**2, targets)
        assert tuple(int(each[number]) for each in loads) == expected


def test_sides_go_to_the_nearest_multiple_and_large_images_shrink_in_proportion():
    geometry = Geometry(patch=8, merge=2, channels=3, max_side=160, shrink=True)
    widths, heights = [16, 23, 25, 5, 160, 320, 1600], [16, 40, 41, 300, 160, 100, 2]
    rows, columns = geometry.grids(np.array(widths), np.array(heights))
    assert columns.tolist() == [2, 2, 4, 2, 20, 20, 20]
    assert rows.tolist() == [2, 6, 6, 20, 20, 6, 2]


def test_an_image_is_resized_to_its_patches_and_transparent_parts_are_white(tmp_path):
    clear = np.zeros((20, 30, 4), dtype=np.uint8)
    clear[:, :15] = (255, 0, 0, 255)
    (tmp_path / "a.png").write_bytes(png(clear))
    (tmp_path / "r.jsonl").write_text('{"image": "a.png", "text": ""}\n')
    records = _records(tmp_path / "r.jsonl", Geometry(8, 1, 3, 64, shrink=False))
    assert records.grids(0) == [(3, 4)]  # 20 x 30 is nearest to 24 x 32 (a half goes up)
    patches = records.pixels(0)[0].reshape(3, 4, 3, 8, 8)
    assert (patches[:, 0, 0] == 255).all()
    assert (patches[:, 0, 1:] == 0).all()
    assert (patches[:, 3] == 255).all()


def test_an_image_is_seen_as_its_orientation_says(tmp_path):
    picture = Image.fromarray(pixels(16, 8, seed=1))
    exif = picture.getexif()
    exif[0x0112] = 6  # to be turned by a quarter
    picture.save(tmp_path / "a.png", exif=exif)
    (tmp_path / "r.jsonl").write_text('{"image": "a.png", "text": ""}\n')
    records = _records(tmp_path / "r.jsonl", Geometry(8, 1, 3, 64, shrink=False))
    assert records.grids(0) == [(2, 1)]
    turned = np.rot90(np.asarray(picture), k=-1)
    assert (records.pixels(0)[0][0].reshape(3, 8, 8) == turned[:8].transpose(2, 0, 1)).all()


def test_grey_images_have_one_channel(tmp_path):
    path = write_lines(tmp_path, [([(8, 8)], "x")], channels=1)
    records = _records(path, Geometry(8, 1, 1, 64, shrink=False))
    assert (records.pixels(0)[0][0] == pixels(8, 8, seed=[0, 0], channels=1).ravel()).all()


def test_every_epoch_has_every_record_once_in_another_order_whatever_the_layout(tmp_path):
    records = _records(write_lines(tmp_path, [([], str(i)) for i in range(24)]))
    order = _order(records)
    epochs = [np.concatenate([order.step(2 * epoch + half).ravel() for half in range(2)]) for epoch in range(3)]
    assert all(sorted(epoch) == list(range(24)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    other = _order(records, microbatches=4, microbatch_size=1, replicas=3)
    assert (other.step(3).ravel() == order.step(3).ravel()).all()
    again = _order(records).step(5)
    assert (again == order.step(5)).all()
    assert not (_order(records, seed=6).step(0) == order.step(0)).all()


def test_replicas_have_parts_of_the_batch_and_one_divisor(tmp_path):
    records = _records(write_lines(tmp_path / "set"))
    order = _order(records, microbatches=2, microbatch_size=1)
    found, of = [], set()
    for replica in range(2):
        batches = image_text_batches(order, replica=replica, steps=9)
        batches.load(3)
        for microbatch in range(2):
            inputs, (labels, total) = batches.inputs(microbatch), batches.targets(microbatch)
            found.append(tuple(labels.tolist()))
            of.add(total)
            assert sum(inputs["lengths"]) == len(inputs["order"])
            assert len(inputs["predict"]) == len(labels)
    assert of == {sum(map(len, found))}
    expected = [tuple(t for t in records.sequence(r).tolist()[1:] if t != IMAGE) for r in order.step(3).ravel()]
    assert found == expected
    loads = order.loads(3)
    assert loads.tokens.shape == (2, 2)
    assert loads.targets.ravel().tolist() == [len(labels) for labels in found]


def test_who_wants_targets_only_opens_no_image(tmp_path):
    path = write_lines(tmp_path / "set")
    order = _order(_records(path), replicas=1)
    for file in (tmp_path / "set").glob("*.png"):
        file.unlink()
    batches = image_text_batches(order, replica=0, steps=9, images=False)
    batches.load(0)
    assert len(batches.targets(0).targets)
    with pytest.raises(RecordError, match=r"records\.jsonl, line \d+: .*\.png: No such file"):
        for step in range(3):
            image_text_batches(order, replica=0, steps=9).load(step)


def test_an_index_is_kept_and_made_anew_when_the_file_changes(tmp_path, cache, monkeypatch):
    from hpcpipe.data import image_index

    path = write_lines(tmp_path / "set", [([(8, 8)], "one")])
    _records(path)
    assert len(list(cache.glob("*.npz"))) == 1
    image_index._read_index.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(image_index, "records_of", None)  # a second start does not look at the records
        assert len(_records(path)) == 1
    (kept,) = cache.glob("*.npz")
    kept.write_bytes(kept.read_bytes()[:100])
    image_index._read_index.cache_clear()
    assert len(_records(path)) == 1
    write_lines(tmp_path / "set", [([(8, 8)], "one"), ([], "two")])
    assert len(_records(path)) == 2


def test_a_folder_that_cannot_be_written_is_no_reason_to_fail(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert len(_records(write_lines(tmp_path / "set"))) == len(RECORDS)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"image": "a.png"}', r'line 2: it has no "text"; write'),
        ('{"image": 3, "text": "x"}', r'line 2: "image" is neither a path nor a list'),
        ("a picture", r"line 2: not JSON \(Expecting value"),
        ('{"image": "none.png", "text": "x"}', r"line 2: .*none\.png: No such file or directory"),
        ('{"image": "text.png", "text": "x"}', r"line 2: .*text\.png: no image that Pillow knows"),
        ('{"image": "a.png", "text": "<image> and <image>"}', r"line 2: its text has 2 marks <image> for 1 images"),
        ('{"text": "\\ud800"}', r"line 2: its text holds half a character"),
    ],
)
def test_a_wrong_line_is_named_with_what_is_wrong(tmp_path, line, said):
    (tmp_path / "a.png").write_bytes(png(pixels(8, 8, seed=0)))
    (tmp_path / "text.png").write_text("no picture")
    (tmp_path / "r.jsonl").write_text('{"image": "a.png", "text": "x"}\n' + line + "\n")
    with pytest.raises(RecordError, match=said):
        _records(tmp_path / "r.jsonl")


def test_a_damaged_image_is_named_with_its_record(tmp_path):
    path = write_lines(tmp_path / "set", [([], "fine"), ([(32, 32)], "damaged")])
    file = tmp_path / "set" / "1-0.png"
    file.write_bytes(file.read_bytes()[:200])
    records = _records(path)
    with pytest.raises(RecordError, match=r"records\.jsonl, line 2: .*1-0\.png: it cannot be decoded"):
        records.pixels(1)
    tar = tmp_path / "damaged.tar"
    content = png(pixels(32, 32, seed=0))
    import tarfile

    with tarfile.open(tar, "w") as archive:
        add(archive, "some/cat.png", content[:200] + bytes(len(content) - 200))
        add(archive, "some/cat.txt", b"a cat")
    with pytest.raises(RecordError, match=r"damaged\.tar, record some/cat: image 0: it cannot be decoded"):
        _records(tar).pixels(0)


def test_an_image_that_has_become_another_size_is_refused(tmp_path):
    path = write_lines(tmp_path / "set", [([(8, 8)], "x")])
    records = _records(path)
    (tmp_path / "set" / "0-0.png").write_bytes(png(pixels(16, 8, seed=0)))
    with pytest.raises(RecordError, match="has 16 x 8 pixels and had 8 x 8 when the records were indexed"):
        records.pixels(0)


def test_larger_images_and_longer_records_are_refused_with_the_way_out(tmp_path):
    path = write_lines(tmp_path / "set", [([(8, 8)], "x"), ([(8, 8), (72, 8)], "y"), ([(80, 8)], "z")])
    with pytest.raises(RecordError) as caught:
        _records(path)
    assert "line 2: image 1 of 72 x 8 pixels is larger than max_side = 64 (and so are 1 more images)" in str(
        caught.value
    )
    assert 'set [data] max_side to at least 80, or larger = "shrink"' in str(caught.value)
    assert len(_records(path, Geometry(4, 2, 3, 64, shrink=True))) == 3
    with pytest.raises(RecordError, match=r"line 2: 13 tokens \(10 of images\) are more than context = 12; .* 13"):
        _records(path, Geometry(4, 2, 3, 80, shrink=False), context=12)


def test_tars_that_cannot_be_used_say_why(tmp_path):
    import tarfile

    tar = write_tar(tmp_path / "whole.tar")
    content = tar.read_bytes()
    (tmp_path / "packed.tar").write_bytes(gzip.compress(content))
    with pytest.raises(RecordError, match=r"packed\.tar: no uncompressed tar file"):
        _records(tmp_path / "packed.tar")
    (tmp_path / "cut.tar").write_bytes(content[: len(content) // 2 - 700])
    with pytest.raises(RecordError, match=r"cut\.tar is (cut off|damaged)"):
        _records(tmp_path / "cut.tar")
    with tarfile.open(tmp_path / "mute.tar", "w") as archive:
        add(archive, "cat.png", png(pixels(8, 8, seed=0)))
    with pytest.raises(RecordError, match=r"mute\.tar, record cat: no text"):
        _records(tmp_path / "mute.tar")
    with tarfile.open(tmp_path / "mixed.tar", "w") as archive:
        add(archive, "a.txt", b"x")
        add(archive, "b.json", json.dumps({"text": "y"}).encode())
        add(archive, "a.png", png(pixels(8, 8, seed=0)))
    with pytest.raises(RecordError, match=r"a\.png is apart from the other files of its record"):
        _records(tmp_path / "mixed.tar")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RecordError, match=r"a folder without \.tar files"):
        _records(tmp_path / "empty")
    (tmp_path / "blank.jsonl").write_text("\n")
    with pytest.raises(RecordError, match="no record"):
        _records(tmp_path / "blank.jsonl")


def test_what_is_read_ahead_is_what_the_step_has_in_any_order_of_steps(tmp_path):
    order = _order(_records(write_lines(tmp_path / "set")), replicas=1)
    ahead = image_text_batches(order, replica=0, steps=9)
    for step in (0, 1, 2, 7, 8, 3):
        ahead.load(step)
        source = ImageTextSource(order.records)
        for microbatch, (inputs, labels) in enumerate(map(source.read, order.step(step)[0])):
            assert (ahead.inputs(microbatch)["pixels"] == inputs["pixels"]).all()
            assert (ahead.targets(microbatch).targets == labels).all()
