"""The verbs; the only place that prints or names a flag."""
