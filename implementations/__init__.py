"""paratrain: benchmarks of ways to train one network on several machines."""
