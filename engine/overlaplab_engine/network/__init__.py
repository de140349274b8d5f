"""Communicator, process groups, CUDA streams and the emulated link. Collectives are called only here."""
