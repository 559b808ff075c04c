"""The simulators as Gymnasium environments. No trainer of this package uses them."""
