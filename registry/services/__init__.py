"""What the registry does, apart from HTTP: functions that change rows in the caller's transaction and return values."""
