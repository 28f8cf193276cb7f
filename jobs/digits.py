"""Make the records of jobs/vlm.toml: sheets of real handwritten digits, and the text that says what is on them.

The digits are those of the UCI Machine Learning Repository (Alpaydin and Kaynak, 1998; CC BY 4.0), 1,797 images of
8 x 8 pixels that scikit-learn (BSD) carries in its package. A record has none to four sheets of one to twenty-four
digits, so records differ in cost by far. What it writes is a function of --seed.

    python jobs/digits.py           # writes jobs/digits/records.jsonl and the sheets beside it
"""

import argparse
import csv
import gzip
import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image

SIDE, ENLARGED = 8, 2


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Return the images (1797, 8, 8), 0 for paper and 16 for ink, and their digits."""
    spec = find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise SystemExit("the digits come with scikit-learn: pip install scikit-learn")
    with gzip.open(Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz", "rt") as file:
        table = np.array([[float(value) for value in row] for row in csv.reader(file)])
    return table[:, :-1].reshape(-1, SIDE, SIDE), table[:, -1].astype(int)


def sheet(images: np.ndarray, rows: int, columns: int) -> Image.Image:
    """Return some digits as a sheet, row by row."""
    grid = images.reshape(rows, columns, SIDE, SIDE).transpose(0, 2, 1, 3).reshape(rows * SIDE, columns * SIDE)
    return Image.fromarray(np.kron(255 - grid * 255 / 16, np.ones((ENLARGED, ENLARGED))).round().astype(np.uint8))


def main() -> None:
    """Write the records."""
    parser = argparse.ArgumentParser(description="Make the records of jobs/vlm.toml.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent / "digits")
    parser.add_argument("--records", type=int, default=800)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    draws = np.random.Generator(np.random.Philox(options.seed))
    images, labels = digits()
    options.folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for record in range(options.records):
        sheets = int(draws.choice(5, p=[0.04, 0.56, 0.2, 0.12, 0.08]))
        names, texts = [], []
        for number in range(sheets):
            rows = int(draws.choice([1, 2, 3, 4], p=[0.55, 0.2, 0.15, 0.1]))
            columns = int(draws.integers(1, 7))
            chosen = draws.integers(len(images), size=rows * columns)
            names.append(f"{record:04d}-{number}.png")
            sheet(images[chosen], rows, columns).save(options.folder / names[-1])
            texts.append("/".join("".join(map(str, row)) for row in labels[chosen].reshape(rows, columns)))
        said = {0: "no sheet", 1: "1 sheet: "}.get(sheets, f"{sheets} sheets: ") + " and ".join(texts)
        lines.append(json.dumps({"image": names, "text": said}))
    (options.folder / "records.jsonl").write_text("\n".join(lines) + "\n")
    print(f"{options.folder / 'records.jsonl'}: {len(lines)} records, {len(list(options.folder.glob('*.png')))} sheets")


if __name__ == "__main__":
    main()
