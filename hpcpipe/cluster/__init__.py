"""The machine around a run: the launcher's environment, starting ranks, and the doctor's checks."""
