-- Waits until the windows are computed. Names with a dollar sign stand for checked identifiers.
SYSTEM WAIT VIEW $database.$view
