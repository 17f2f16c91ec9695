-- Why:   a finding that is promoted once more takes the new title, and the
--        severity if one is given. Nothing else of an event changes by a caller.
-- Lock:  none that blocks reads or writes.
-- Size:  none.

grant update (title, severity) on event to telltale_app;
