-- The groups on one side of `::` (1 left, 2 right), four digits each; without `::` all are on the left.
CREATE MACRO tf_ipv6_side(groups, side) AS
    list_transform(
        list_filter(string_split(coalesce(string_split(groups, '::')[side], ''), ':'), lambda g: g <> ''),
        lambda g: lpad(g, 4, '0')
    )
