"""The types of values: ClickHouse column types and identifiers, source fields, instants, Arrow arrays, the engine of expressions. Pure."""
