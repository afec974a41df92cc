-- Rows of which one column holds another value than it must, with both.
SELECT position, $wanted AS wanted, $found AS found
FROM wanted JOIN found USING (position, emit) WHERE wanted.$column IS DISTINCT FROM found.$column
