"""The verbs; the only place that prints or defines a flag."""
