"""Modules that stand in for packages which an import asks for and no run here uses."""
