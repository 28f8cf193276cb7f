"""Which chunks of a stage a fusion bucket serves, where nothing but the number of buckets is known."""


def spread_buckets(count: int, chunks: int) -> list[range]:
    """Return the chunks of each of `count` buckets of like size, of which the first hold the last chunk's parameters.

    Backwards make the last layers' gradients final first. A bucket may serve several chunks and a chunk need several.
    """
    spans = [(bucket * chunks // count, ((bucket + 1) * chunks - 1) // count) for bucket in range(count)]
    return [range(chunks - 1 - last, chunks - first) for first, last in spans]
