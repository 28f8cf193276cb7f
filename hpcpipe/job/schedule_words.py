"""A schedule in one word, as in `kfkb:k=4:fixed`: from what people type to settings of a job. It checks no values."""

from hpcpipe.job.tune import Tune

_DEFAULTS = {"k": "1", "in_flight": "equal-memory", "stash": "equal-memory", "dispatch": "ready"}


def schedule_settings(text: str) -> list[str]:
    """Return the settings that `HINT` and words after colons stand for; what is not said is as in a new job.

    Raises
    ------
    ValueError
        A word is none of these.
    """
    hint, *words = text.strip().split(":")
    chosen = dict(_DEFAULTS)
    if hint == "file":
        hint, words = f"file:{words[0] if words else ''}", words[1:]
    for word in words:
        key, sign, value = word.partition("=")
        if sign and (key == "admission" or key in chosen):
            chosen[key] = value
        elif word in ("fixed", "ready"):
            chosen["dispatch"] = word
        else:
            raise ValueError(
                f"{text}: {word!r} is neither fixed, ready, k=N, in_flight=CAP, stash=CAP nor admission=RULE"
            )
    settings = [f"schedule.hint={hint}", "parallel.chunks=auto", "parallel.split=auto"]
    settings += [f"tune.{key}={field.default}" for key, field in Tune.model_fields.items()]  # else it would change k
    return settings + [f"schedule.{key}={value}" for key, value in chosen.items()]


_CAPS = ("equal-memory", "1f1b")


def what_if_settings(words: list[str]) -> list[str]:
    """Return the settings of `HINT[,CAP][,k][,DISPATCH]`: a cap as it stands (`1f1b`, `2x`, `6`) and `k=N` or `kN`.

    Raises
    ------
    ValueError
        A word is none of these.
    """
    hint, *rest = words
    named = []
    for word in rest:
        if word[:1] == "k" and word[1:].isdecimal():
            named.append(f"k={word[1:]}")
        elif word in _CAPS or word[:1].isdecimal():
            named.append(f"in_flight={word}")
        elif word in ("fixed", "ready") or "=" in word:
            named.append(word)
        else:
            raise ValueError(
                f"{','.join(words)}: {word!r} is neither fixed, ready, k=N nor a cap such as 1f1b, 2x or 6"
            )
    return schedule_settings(":".join([hint, *named]))
