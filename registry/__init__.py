"""The registry: HTTP service over SQL rows, a blob store and a queue. It never imports `worker`."""
