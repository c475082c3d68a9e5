"""Emulated hosts: network namespaces of this machine, joined by real TCP over links of limited rate. Root only."""
