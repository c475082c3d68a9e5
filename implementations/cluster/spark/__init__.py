"""Apache Spark as what starts and joins workers: Java, sessions of several kinds, and barrier stages with gloo."""
