"""The part that touches the world: streams, run directories, locks and the catalog."""
