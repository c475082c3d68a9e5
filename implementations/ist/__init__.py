"""Independent subnet training (Yuan et al. 2022, PVLDB 15(8)): narrow disjoint subnets, trained locally, drawn anew."""
