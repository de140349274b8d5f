"""The error class for everything that a user can fix."""


class EngineError(Exception):
    """Bad configuration, ranks that disagree, or a run that cannot go on; one line that names the remedy."""
