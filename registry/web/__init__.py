"""Pages for people: made on the server, without scripts, complete without any other host."""
