"""Settings for every test: drawn examples are the same on every run, and so on every rank."""

from hypothesis import settings

settings.register_profile("hpcpipe", deadline=None, derandomize=True)
settings.load_profile("hpcpipe")
