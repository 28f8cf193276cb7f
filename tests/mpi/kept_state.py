"""What a rank keeps of one parameter for its updates, looked up in the shards of its buckets."""


def state_of(buckets, parameter):
    """Return the first and the last of its elements that this rank updates, and its part of each state by name."""
    for bucket in buckets:
        at = 0
        for each in bucket.parameters:
            if each is parameter:
                size, shard = parameter.numel(), bucket.shard
                begin = min(max(shard.start - at, 0), size)
                end = max(begin, min(shard.stop - at, size))
                mine = slice(at + begin - shard.start, at + end - shard.start)
                states = bucket.states.items()
                return begin, end, {name: value if value.ndim == 0 else value[mine] for name, value in states}
            at += each.numel()
    raise AssertionError(f"a parameter of shape {tuple(parameter.shape)} is in no bucket")
