-- Positions at which one column holds another value than it must, with both.
SELECT position, $wanted AS wanted, $found AS found
FROM wanted JOIN found USING (position) WHERE wanted.$column IS DISTINCT FROM found.$column
