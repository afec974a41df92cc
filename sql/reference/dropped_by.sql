-- Records that a step without state drops with one outcome. Steps of one kind count together.
SELECT position FROM parsed WHERE stage = '$total' AND position BETWEEN $first AND $last
