"""Which method, for a network, data of a size and a machine: predictions of all of them, and what they rest on.

``estimates`` asks the cost models that there are (``timemodel`` on dry traces, the layer-wise planner, Spark's);
``parts`` says what limits a method, ``targets`` what is known of steps to a target, ``trust`` how far the models were
off.
"""
