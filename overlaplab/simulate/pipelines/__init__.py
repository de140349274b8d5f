"""Pipelines: a recorded one as shapes of its steps, shapes under other schedules, and the programs of their ranks."""
