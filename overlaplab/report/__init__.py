"""Reports: an analysis' tables as a JSON document or as tables for a terminal."""
