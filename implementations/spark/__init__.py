"""Data- and model-parallel training on Apache Spark (Shrivastava, Chaudhury and Jayadeva 2017, arXiv 1708.05840)."""
