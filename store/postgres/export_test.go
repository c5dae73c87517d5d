package postgres

// ClaimSQL is claimSQL, for tests of its plans.
var ClaimSQL = claimSQL
