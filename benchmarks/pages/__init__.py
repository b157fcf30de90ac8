"""The time of pages and API reads over many models and predictions: `python -m benchmarks.pages`."""
