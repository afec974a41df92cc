-- Records that a step without state drops. Two of one kind count together.
SELECT position FROM parsed WHERE stage = 'dropped.$step' AND position BETWEEN $first AND $last
