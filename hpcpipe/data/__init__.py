"""Data files to micro-batches."""

from hpcpipe.data.batches import Batches, Counted, Evaluation, Source, counted_tokens
from hpcpipe.data.image_file import Geometry
from hpcpipe.data.image_records import ImageRecords
from hpcpipe.data.image_scan import RecordError
from hpcpipe.data.image_text import ImageTextOrder, ImageTextSource, image_text_batches
from hpcpipe.data.order import Deal, Order, evaluation_deal, held_out
from hpcpipe.data.own import OwnSource
from hpcpipe.data.text import open_text
from hpcpipe.data.tokenizer import open_tokenizer
from hpcpipe.data.tokens import open_tokens
from hpcpipe.data.windows import Windows

__all__ = [
    "Batches",
    "Counted",
    "Deal",
    "Evaluation",
    "Geometry",
    "ImageRecords",
    "ImageTextOrder",
    "ImageTextSource",
    "Order",
    "OwnSource",
    "RecordError",
    "Source",
    "Windows",
    "counted_tokens",
    "evaluation_deal",
    "held_out",
    "image_text_batches",
    "open_text",
    "open_tokenizer",
    "open_tokens",
]
