"""What the cost model and the search can be told, by name; imports nothing."""

# The paper's equation 1; ours, where sums of gradients hide behind the backward pass.
OBJECTIVES = ("additive", "hidden")
# The paper's parameter server; what the executor does.
SYNCS = ("server", "allreduce")
