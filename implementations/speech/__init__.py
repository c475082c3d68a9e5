"""Speech: corpora of feature frames, a monophone recogniser that aligns them, decoding, and word error rate."""
