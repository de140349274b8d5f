"""Edits of programs: what ranks would do otherwise, from what they did (see `player`); functions of programs alone."""
