package tenantdb

// Silent is silent for tests of this package.
var Silent = silent

// Begin says that the reading of a context has its connection.
var Begin = begin
