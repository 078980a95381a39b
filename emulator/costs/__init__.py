"""What a program costs: operations, bytes, and the time that a machine cannot go below."""
