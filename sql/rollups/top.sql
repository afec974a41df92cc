-- The items with the largest amounts by window and group, of equal ones the first. Names with a dollar sign stand for checked text.
SELECT window$keys, arraySlice(arraySort(one -> (-one.2, one.1), groupArray((item, amount))), 1, $n) AS items
FROM ($figures) GROUP BY window$keys
