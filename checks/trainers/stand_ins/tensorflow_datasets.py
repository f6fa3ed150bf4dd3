"""Stands in for tensorflow_datasets, imported by MaxText up to 0.2.3 and not used here."""

from tensorflow import __getattr__ as __getattr__
