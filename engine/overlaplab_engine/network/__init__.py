"""The link, process groups, streams, phantoms and the device's clock: only here are collectives called."""
