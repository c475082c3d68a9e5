"""Workers and what joins them: communicators, ledger, closed forms of volume, machines and the time model."""
