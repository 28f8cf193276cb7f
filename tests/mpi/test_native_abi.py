"""The native module is refused when it and mpi4py use different MPI libraries."""

import pytest

from hpcpipe.collective import abi

pytestmark = pytest.mark.mpi


def test_the_library_in_use_is_the_one_that_mpi4py_uses():
    from mpi4py import MPI

    config = abi.build_config()
    assert config["mpi_library_path"]
    assert config["mpi_library_version"] == " ".join(MPI.Get_library_version().splitlines()[0].split())
    assert config["mpi_vendor"] in {"mpich", "openmpi", "other"}
    abi.check_same_mpi(config, MPI._sizeof(MPI.Comm))


def test_another_library_is_refused_with_one_sentence_that_names_both(monkeypatch):
    from mpi4py import MPI

    monkeypatch.setattr(abi, "mpi4py_library_path", lambda: "/opt/site/lib/libmpi.so.40")
    config = abi.build_config()
    with pytest.raises(ImportError) as refused:
        abi.check_same_mpi(config, MPI._sizeof(MPI.Comm))
    sentence = str(refused.value)
    assert "\n" not in sentence
    assert config["mpi_library_path"] in sentence
    assert "/opt/site/lib/libmpi.so.40" in sentence
    assert "MPICC" in sentence


def test_another_handle_size_is_refused_although_the_path_is_the_same():
    from mpi4py import MPI

    with pytest.raises(ImportError, match="rebuild hpcpipe with MPICC"):
        abi.check_same_mpi(abi.build_config(), 12 - MPI._sizeof(MPI.Comm))
