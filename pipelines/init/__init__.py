"""A first pipeline file from a sample of records: records, their fields, the columns that they become, the text of the file."""
