"""HTTP handlers: parse, open a transaction, call one service, reply."""
