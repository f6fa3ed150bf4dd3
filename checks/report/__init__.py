"""A report for a reader: on the console, as JSON, as one HTML page."""
