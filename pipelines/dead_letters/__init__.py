"""Dead letters: the stream, their groups, redriving them."""
