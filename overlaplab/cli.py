"""The `overlaplab` command."""


def main() -> None:
    """Run the command line."""
