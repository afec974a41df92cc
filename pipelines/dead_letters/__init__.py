"""Dead letters: the stream, their groups, letting them enter again."""
