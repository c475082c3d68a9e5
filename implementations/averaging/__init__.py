"""Model averaging over MPI (Su and Chen 2015, arXiv 1507.01239)."""
