"""Timings, kept out of the tests: ``make bench`` prints each as a ratio measured in one run."""
