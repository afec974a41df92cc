"""Work on dead letters from outside the stream: looking, taking, editing. The stages that make and take them are dlq.py and redrive.py."""
