"""What travels between client, worker and registry: requests refuse unknown fields, replies tolerate them."""
