"""Recorded runs on GPUs played again: hosts and streams as programs, and what changes in them."""
