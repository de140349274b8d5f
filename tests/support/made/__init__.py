"""Traces, runs and tables written by hand or by rule."""
