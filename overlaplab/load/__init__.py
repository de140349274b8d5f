"""Loading: a path to a run, a folder of foreign traces or one file becomes a `Run`."""
