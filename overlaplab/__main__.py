"""`python -m overlaplab`."""

from overlaplab.cli import main

main()
