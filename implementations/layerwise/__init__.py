"""Layer-wise parallelism: each layer of a network split its own way (after Jia, Lin, Qi and Aiken 2018)."""
