"""The protocols between brokers, without input and output: values in, values out."""
