-- Lets the server compute the windows now. Names with a dollar sign stand for checked identifiers.
SYSTEM REFRESH VIEW $database.$view
