"""The part that touches the world: streams, run directories, locks and the catalog."""

__distribution__ = "compass-es"
