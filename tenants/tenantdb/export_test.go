package tenantdb

// Silent is silent for tests of this package.
var Silent = silent
