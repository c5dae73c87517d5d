// Package openapitest holds takt's replies against its OpenAPI document, in tests.
//
// # State
//
// A [Checker] has the document, made stricter, and the schemas that it has
// compiled.
//
// # Failure
//
// What the document does not describe is an error: a status, a content type, a
// member. [Checker.Transport] fails the test with it.
//
// # Concurrency
//
// A Checker may be used by any goroutine.
package openapitest
